"""Questions and debuggers of ranks end when their cell is interrupted or given up."""

from pathlib import Path

import pytest

from nbddp.controller.pool import CellOptions, Pool
from nbddp.controller.state.rank_state import RankState
from nbddp.errors import CellInterruptedError
from nbddp.wire.messages import InputRequest
from tests.support.interrupts import interrupted
from tests.support.polling import poll_until
from tests.support.views import RecordingView, run_cell


def test_a_debugger_ends_when_its_cell_is_given_up(pool: Pool):
    view = RecordingView([KeyboardInterrupt(), KeyboardInterrupt(), KeyboardInterrupt()])
    run = pool.submit("if rank == 0: breakpoint()\n", CellOptions(ranks=pool.all_ranks))
    pool.wait(run, view)
    assert len(view.asked) == 2
    poll_until(lambda: all(info.state is RankState.IDLE for info in pool.ranks()))


def test_questions_of_all_ranks_end_with_one_interrupt(pool: Pool):
    run = pool.submit("input('?')\n", CellOptions(ranks=pool.all_ranks))

    class View(RecordingView):
        def ask(self, request: InputRequest) -> str:
            self.asked.append(request)
            poll_until(lambda: run.put_count == 4)  # both ranks have begun, both have asked
            raise KeyboardInterrupt

    view = View()
    assert isinstance(pool.error_of(pool.wait(run, view)), CellInterruptedError)
    assert len(view.asked) == 1


def test_questions_of_all_ranks_end_when_their_cell_is_given_up(pool: Pool):
    code = "while True:\n    try: input('?')\n    except KeyboardInterrupt: pass\n"
    run = pool.submit(code, CellOptions(ranks=pool.all_ranks))

    class View(RecordingView):
        def ask(self, request: InputRequest) -> str:
            self.asked.append(request)
            # Both ranks have begun, and ask for the first or for the second time.
            # More may have come: ranks that are interrupted again ask again.
            poll_until(lambda: run.put_count >= 2 + 2 * len(self.asked))
            raise KeyboardInterrupt

    view = View()
    outcome = pool.wait(run, view)
    assert len(view.asked) == 2
    assert outcome.ranks("unfinished") == pool.all_ranks
    assert (
        "ranks 0-1 are still inside the cell (last seen at a prompt, which now ends); "
        "if they do not come back: %ddp restart" in str(pool.error_of(outcome))
    )
    poll_until(lambda: all(info.state is RankState.IDLE for info in pool.ranks()))
    assert run_cell(pool, "dist.barrier(); print(rank)").texts() == {0: "0\n", 1: "1\n"}


@pytest.mark.fresh_ranks
def test_a_question_after_its_cell_was_given_up_ends_at_once(pool: Pool, tmp_path: Path):
    late: list[object] = []
    pool.listeners.background = late.append
    outcome = interrupted(
        pool,
        "import signal\nfrom pathlib import Path\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"while rank and not Path({str(tmp_path / 'go')!r}).exists(): pass\n"
        "try: rank and input('?')\nexcept EOFError as error: print('told:', error)",
        presses=2,
    )
    assert 1 in outcome.ranks("unfinished")
    assert "in C code" in str(pool.error_of(outcome))  # it does not ask yet
    (tmp_path / "go").touch()
    poll_until(lambda: all(info.state is RankState.IDLE for info in pool.ranks()))
    assert "told: the cell that asked has ended\n" in [getattr(one, "text", "") for one in late]


def test_a_rank_may_ask_after_an_interrupt(pool: Pool):
    code = "try: input('first? ')\nexcept KeyboardInterrupt: print('got', input('really? '))"
    view = run_cell(pool, code, ranks="0", answers=[KeyboardInterrupt(), "yes"], check=False)
    assert view.text(0) == "got yes\n"
