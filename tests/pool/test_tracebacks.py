"""The cost of the traceback of a cell, and its lines."""

import pytest

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


def test_modules_are_not_searched_for_every_frame_of_a_cell(pool: Pool):
    """Torch has thousands of modules: 5 ms for each frame, 5 s for an endless recursion."""
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


def test_a_traceback_adds_no_module_to_the_tables_of_inspect(pool: Pool):
    run_cell(pool, "import inspect\nbefore = set(inspect.modulesbyfile.values())")
    run_cell(pool, "1 / 0", check=False)
    assert pool.pull("'__main__' in set(inspect.modulesbyfile.values()) - before") == [False, False]


#: Code of a cell, and line, function and source of where it raised.
_RAISED = {
    "1 / 0": (1, "<module>", "1 / 0"),
    "def f():\n    raise KeyError('k')\nf()": (2, "f", "raise KeyError('k')"),
    "try:\n    1 / 0\nexcept ZeroDivisionError:\n    int('x')": (4, "<module>", "int('x')"),
    "import sys\nsys.exit(3)": (2, "<module>", "sys.exit(3)"),
    "import json\njson.loads('{')": (2, "<module>", "json.loads('{')"),
    "x = 1\nraise ExceptionGroup('all', [KeyError(1)])": (
        2,
        "<module>",
        "raise ExceptionGroup('all', [KeyError(1)])",
    ),
    "import asyncio\nawait asyncio.sleep('x')": (2, "<module>", "await asyncio.sleep('x')"),
    "x = = 1": None,
}


@pytest.mark.parametrize("code", _RAISED)
def test_a_rank_tells_the_line_of_the_cell_in_which_it_raised(pool: Pool, code: str):
    view = run_cell(pool, code, check=False, execution_count=7)
    assert view.outcome is not None
    error = view.outcome.results[0].error
    assert error is not None
    site = error.site
    found = None if site is None else (site.cell, site.line, site.function, site.source)
    expected = _RAISED[code]
    assert found == (None if expected is None else (7, *expected))
