"""What the traceback of a cell costs."""

from nbddp.controller.pool.pool import Pool
from tests.support.views import run_cell

_COUNTER = """
import sys, types, warnings
class Counted(types.ModuleType):
    looks = 0
    def __getattr__(self, name):
        if name == '__file__':
            Counted.looks += 1
        raise AttributeError(name)
sys.modules['counted'] = Counted('counted')
def deeper(depth):
    return deeper(depth - 1) if depth else 1 / 0
"""


def test_not_every_frame_of_a_cell_makes_a_search_of_all_modules(pool: Pool):
    """With torch there are thousands: 5 ms for each frame, 5 s for a recursion without an end."""
    run_cell(pool, _COUNTER)
    view = run_cell(pool, "deeper(100)", check=False)
    assert "ZeroDivisionError" in str(view.error)
    assert "deeper(depth - 1)" in str(view.error)
    chained = "try:\n    deeper(100)\nexcept ZeroDivisionError:\n    exec('deeper(50)')"
    view = run_cell(pool, chained, check=False)
    assert "During handling of the above exception" in str(view.error)
    looks = max(pool.pull("Counted.looks"))
    run_cell(pool, "del sys.modules['counted'], deeper, Counted")
    assert looks < 30


def test_what_inspect_knows_is_as_before(pool: Pool):
    run_cell(pool, "import inspect\nbefore = set(inspect.modulesbyfile.values())")
    run_cell(pool, "1 / 0", check=False)
    assert pool.pull("'__main__' in set(inspect.modulesbyfile.values()) - before") == [False, False]
