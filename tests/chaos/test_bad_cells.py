"""Every bad cell in every context: alone, on all ranks, inside a collective, repeated."""

import textwrap
from collections.abc import Callable

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import PoolBrokenError, RankExitedError
from tests.cases.bad_cells import DEADLY, HARMLESS, BadCell, parametrize
from tests.support.views import RecordingView, run_cell

#: Guards against hanging.
_LIMIT_S = 20.0
_PROBE = """
import os, sys
sys.stdout.write('out\\n'); sys.stderr.write('err\\n'); os.write(1, b'raw\\n')
"""


def _run(pool: Pool, code: str, ranks: str | None = None) -> RecordingView:
    return run_cell(pool, code, ranks=ranks, timeout=_LIMIT_S, check=False)


def _check(cell: BadCell, view: RecordingView) -> None:
    assert type(view.error) is (cell.error or type(None)), view.error
    for word in cell.words:
        assert word in str(view.error)


def _check_prints(pool: Pool) -> None:
    view = _run(pool, _PROBE)
    assert view.error is None, view.error
    assert view.texts() == {0: "out\nraw\n", 1: "out\nraw\n"}
    assert view.texts("stderr") == {0: "err\n", 1: "err\n"}


@parametrize(DEADLY)
@pytest.mark.fresh_ranks
def test_a_rank_that_dies(cell: BadCell, pool: Pool):
    pid = next(info.pid for info in pool.ranks() if info.rank == 1)

    view = _run(pool, f"print('last words')\n{cell.code}", ranks="1")
    _check(cell, view)
    for word in ("rank 1 exited with ", f"pid {pid}", "last words", "was replaced"):
        assert word in str(view.error)
    _check_prints(pool)
    assert pid != next(info.pid for info in pool.ranks() if info.rank == 1)

    _check(cell, _run(pool, cell.code))  # on all ranks
    _check_prints(pool)

    code = textwrap.indent(cell.code, "    ")
    view = _run(pool, f"if rank == 1:\n{code}\nelse:\n    dist.all_reduce(torch.ones(1))")
    _check(cell, view)
    assert "rank 1 exited with " in str(view.error)
    assert "rank 0" in str(view.error)
    _check_prints(pool)


@pytest.mark.fresh_ranks
def test_a_rank_that_dies_is_kept_dead_on_request(pool: Pool):
    pool.configure(on_death="keep")
    view = _run(pool, "import os; os._exit(3)", ranks="1")
    assert "%ddp restart" in str(view.error)
    with pytest.raises(PoolBrokenError, match=r"rank 1 has exited.*rank 0 can still be used.*-r"):
        run_cell(pool, "pass")
    assert _run(pool, "print('alive')", ranks="0").text(0) == "alive\n"
    pool.restart()
    _check_prints(pool)


@parametrize(HARMLESS)
def test_a_rank_that_stays(cell: BadCell, pool: Pool, request: pytest.FixtureRequest):
    if cell.runs_on:
        request.applymarker(pytest.mark.breaks_pool)
    _run(pool, _NOTE)
    for _ in range(2):
        _check(cell, _run(pool, cell.code))
        _check_prints(pool)
    _check(cell, _run(pool, cell.code, ranks="1"))
    _check_prints(pool)
    _run(pool, _TIDY)


_NOTE = """
import builtins, os
_noted = builtins.print, builtins.input, dict(os.environ)
"""

#: The pool is shared: a bad cell must not leave anything that breaks the next one.
_TIDY = """
import builtins, importlib, os, signal
import torch
import torch.distributed as dist
builtins.print, builtins.input = _noted[:2]
os.environ.update(_noted[2])
rank, world_size = dist.get_rank(), dist.get_world_size()
for _name in ('files', 'file'):
    for _open in [globals().get(_name)] if _name == 'file' else globals().get(_name, []):
        if _open is not None: _open.close()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
for _pid in open(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read().split():
    os.kill(int(_pid), signal.SIGKILL)
    os.waitpid(int(_pid), 0)
os.chdir('/')
"""


def test_a_hang_at_exit_does_not_keep_a_pool_from_stopping(
    fresh_pool: Callable[..., Pool],
):
    pool = fresh_pool()
    for cell in HARMLESS:
        if cell.error is None:
            _run(pool, cell.code)
    pool.stop()  # `no_leaks` looks for what is left


@pytest.mark.fresh_ranks
def test_the_last_output_of_a_crash_is_whole(pool: Pool):
    code = (
        "import ctypes, os, sys\nfor n in range(1000): print('line', n)\n"
        "sys.stdout.write('no end')\nos.write(2, b'and the error stream')\nctypes.string_at(0)"
    )
    view = _run(pool, code, ranks="0")
    assert isinstance(view.error, RankExitedError)
    lines = view.text(0).splitlines()
    assert lines[:1000] == [f"line {n}" for n in range(1000)]
    assert "and the error stream" in view.text(0, "stderr")
    assert "line 999" in str(view.error)
