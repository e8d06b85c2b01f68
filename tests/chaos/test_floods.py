"""Endless output: the notebook shows a bounded part, the log on disk has all of it."""

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from nbddp.controller.pool import CellOptions, Pool
from nbddp.controller.state.outcome import RunOutcome
from nbddp.errors import CellInterruptedError
from nbddp.notebook.output import Live
from nbddp.notebook.output.cell_view import View
from nbddp.notebook.output.screen import RICH_TOTAL_BYTES
from nbddp.notebook.output.sinks import Sink
from nbddp.settings import Settings
from nbddp.wire.messages import Stream
from tests.support.polling import poll_until
from tests.support.views import begin_cell, run_cell

_MB = 1_000_000


class _CountingSink(Sink):
    """A sink that counts its output."""

    def __init__(self) -> None:
        self.text_bytes = 0
        self.displays = 0
        self.last = ""
        self.ranks_have_ended = threading.Event()

    def text(self, stream: Stream, text: str) -> None:
        self.text_bytes += len(text)
        self.last = (self.last + text)[-40_000:]

    def display(self, data: Any, metadata: Any, display_id: str | None, update: bool) -> None:
        self.displays += 1

    def clear(self) -> None:
        pass

    def live(self, live: Live) -> None:
        assert sum(map(len, live.open_lines)) < 2 * _MB


class _BusySink(_CountingSink):
    """A sink that shows its first text when the ranks have ended the cell."""

    def text(self, stream: Stream, text: str) -> None:
        assert self.ranks_have_ended.wait(60)
        super().text(stream, text)


def _show(
    pool: Pool, code: str, ranks: str | None = None, sink: _CountingSink | None = None
) -> tuple[_CountingSink, RunOutcome]:
    """Run a cell through the real view."""
    sink = sink or _CountingSink()
    run = pool.submit(code + "\n", CellOptions(ranks=pool.rank_set(ranks)))
    run.add_done_callback(sink.ranks_have_ended.set)
    view = View(
        run,
        sink,
        world_size=pool.world_size,
        settings=pool.settings,
        log_path_by_rank=pool.log_path_by_rank,
        can_ask=False,
        display_scope=pool.pool_id,
    )
    return sink, pool.wait(run, view)


def _log(pool: Pool, rank: int) -> bytes:
    return Path(pool.log_path_by_rank[rank]).read_bytes()


def _next_cell_is_clean(pool: Pool) -> None:
    assert run_cell(pool, "print('next')").texts() == {0: "next\n", 1: "next\n"}


def test_a_hundred_megabytes_of_prints(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool()
    process = psutil.Process()
    before = process.memory_info().rss
    code = "line = 'x' * 99\nfor n in range(500_000): print(line)\nprint('the end')"
    sink, outcome = _show(pool, code)
    assert outcome.ranks("ok") == pool.all_ranks
    assert process.memory_info().rss - before < 100 * _MB
    assert sink.text_bytes < 6 * _MB
    assert "left out here; the whole output:" in sink.last
    assert "the end" in sink.last
    for rank in (0, 1):
        log = _log(pool, rank)
        assert log.count(b"\n") == 500_001
        assert log.endswith(b"x\nthe end\n")
    _next_cell_is_clean(pool)


def test_the_last_lines_are_shown_though_the_notebook_was_behind_at_the_end(
    fresh_pool: Callable[..., Pool],
):
    pool = fresh_pool(settings=Settings(output_backlog_bytes=1000))
    code = "for n in range(50_000): print('x' * 99)\nprint('the end of', rank)\n100 + rank"
    sink, outcome = _show(pool, code, sink=_BusySink())
    assert outcome.ranks("ok") == pool.all_ranks
    assert "left out here; the whole output:" in sink.last
    for rank in (0, 1):
        assert f"the end of {rank}" in sink.last.partition(f"Out: {100 + rank}")[0]
    _next_cell_is_clean(pool)


@pytest.mark.fresh_ranks
def test_an_endless_flood_is_interrupted(pool: Pool):
    running = begin_cell(pool, "while True: print('flood ' * 20)")
    poll_until(lambda: len(running.view.text(0)) > 10 * _MB and len(running.view.text(1)) > _MB)
    pool.interrupt()
    assert isinstance(running.join().error, CellInterruptedError)
    _next_cell_is_clean(pool)


def test_one_line_without_end(pool: Pool):
    sink, outcome = _show(
        pool, "import sys\nfor n in range(200): sys.stdout.write('y' * 50_000)", ranks="0"
    )
    assert outcome.ranks("ok").ranks == (0,)
    assert 0 < sink.text_bytes < 6 * _MB
    _next_cell_is_clean(pool)


def test_binary_garbage(pool: Pool):
    code = """
import hashlib, os, random
data = random.Random(1).randbytes(300_000)
os.write(1, data)
digest = hashlib.sha256(data).hexdigest()"""
    log_before = len(_log(pool, 0))
    sink, outcome = _show(pool, code, ranks="0")
    assert outcome.ranks("ok").ranks == (0,)
    assert sink.text_bytes > 0
    logged = _log(pool, 0)[log_before:]
    assert hashlib.sha256(logged).hexdigest() == pool.pull("digest", ranks=0)
    _next_cell_is_clean(pool)


def test_megabytes_to_standard_error(pool: Pool):
    code = "import sys\nfor n in range(100_000): print('error', n, 'z' * 40, file=sys.stderr)"
    sink, outcome = _show(pool, code)
    assert outcome.ranks("ok") == pool.all_ranks
    assert sink.text_bytes < 6 * _MB
    assert "error 99999" in sink.last
    _next_cell_is_clean(pool)


def test_a_flood_of_displays(pool: Pool):
    code = "from IPython.display import HTML, display\nhtml = HTML('b' * 100_000)\n"
    sink, outcome = _show(pool, code + "for n in range(1500): display(html)", ranks="0")
    assert outcome.ranks("ok").ranks == (0,)
    assert sink.displays // 2 < RICH_TOTAL_BYTES / 100_000  # each has a label
    assert "of displays: no more are shown in this cell" in sink.last
    _next_cell_is_clean(pool)


def test_a_flood_of_updates_of_one_display(pool: Pool):
    code = (
        "from IPython.display import HTML, display\nshown = display(HTML('0'), display_id=True)\n"
        "for n in range(3000): shown.update(HTML(str(n)))"
    )
    sink, outcome = _show(pool, code, ranks="0")
    assert outcome.ranks("ok").ranks == (0,)
    assert sink.displays < 600
    _next_cell_is_clean(pool)


def test_twenty_threads_print_whole_lines(pool: Pool):
    code = """
import threading
def talk(name):
    for n in range(500): print(f'<{name}:{n}>\\n', end='')
threads = [threading.Thread(target=talk, args=(name,)) for name in range(20)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    view = run_cell(pool, code)
    expected = sorted(f"<{name}:{n}>" for name in range(20) for n in range(500))
    for rank in (0, 1):
        assert sorted(view.text(rank).split()) == expected
    _next_cell_is_clean(pool)


def test_a_flood_between_cells_is_bounded_and_does_not_reach_the_next_one(pool: Pool):
    run_cell(
        pool,
        "import threading\nleave = threading.Event()\n"
        "def talk():\n    while not leave.is_set(): print('background ' * 50)\n"
        "thread = threading.Thread(target=talk); thread.start()",
    )
    before = psutil.Process().memory_info().rss
    assert pool.pull("rank + 1") == [1, 2]
    run_cell(pool, "leave.set(); thread.join()")
    assert psutil.Process().memory_info().rss - before < 100 * _MB
    _next_cell_is_clean(pool)


def test_a_small_log_says_that_it_is_full(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool(settings=Settings(log_limit_bytes=10_000))
    run_cell(pool, "for n in range(10_000): print(n)")
    assert len(_log(pool, 0)) < 11_000
    assert b"the log is full" in _log(pool, 0)
    _next_cell_is_clean(pool)
