"""The wait for a cell ends whatever the hub, the ranks and the user do."""

import math
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from nbddp.controller.diagnosis import PerRank, Predicate, RankVerb, Report
from nbddp.controller.hub.run import Run
from nbddp.controller.pool import cell_wait
from nbddp.controller.pool.cell_wait import CellWait
from nbddp.controller.pool.view_protocol import SilentView
from nbddp.controller.prompts import step_turns
from nbddp.controller.state.actions import VerdictReached
from nbddp.controller.state.outcome import RankResult, RunOutcome
from nbddp.errors import CellInterruptedError
from nbddp.wire.flight_recorder import Operation, Signature, Site
from nbddp.wire.messages import InputReply, InputRequest, Output
from nbddp.wire.rank_set import RankSet
from tests.support.views import RecordingView

BOTH = RankSet.all(2)


@pytest.fixture
def pressed() -> Iterator[list[int]]:
    """The interrupts that reach the code around the wait."""
    found: list[int] = []
    before = signal.signal(signal.SIGINT, lambda signum, frame: found.append(signum))
    yield found
    signal.signal(signal.SIGINT, before)


def wait(run: Run, view: RecordingView) -> tuple[RunOutcome, list[str]]:
    told: list[str] = []
    outcome = CellWait(
        run,
        view,
        interrupt=lambda: told.append("interrupt"),
        abandon=lambda: told.append("abandon"),
        reply=lambda rank, reply: told.append(f"reply {rank}"),
    ).wait()
    return outcome, told


def end(run: Run) -> RunOutcome:
    results = {rank: RankResult(rank, "ok") for rank in run.ranks}
    outcome = RunOutcome(run.run_id, results, 1.0)
    run.end(outcome)
    return outcome


def test_a_hub_that_does_not_answer_is_left_after_two_interrupts(
    pressed: list[int], monkeypatch: pytest.MonkeyPatch
):
    class Pressing(RecordingView):
        presses = 2

        def tick(self) -> float | None:
            if self.presses:
                self.presses -= 1
                signal.raise_signal(signal.SIGINT)
            return 0.0

    monkeypatch.setattr(cell_wait, "_GIVE_UP_S", 0.05)
    view = Pressing()
    with pytest.raises(CellInterruptedError) as caught:
        wait(Run("r", BOTH, 1000), view)
    assert "(nbddp-hub) does not answer" in str(caught.value)
    assert "next      %ddp stop, or restart the kernel" in str(caught.value)
    assert set(caught.value.by_rank) == {0, 1}
    assert view.outcome is not None
    assert pressed == []


class Asking(RecordingView):
    """Asks until it is interrupted."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__()
        self._then = then

    def ask(self, request: InputRequest) -> str:
        self.asked.append(request)
        threading.Timer(0.05, self._then).start()
        assert not threading.Event().wait(20), "the question was not broken"
        return "too late"


@pytest.mark.parametrize("round_number", range(5))
def test_a_question_ends_with_its_cell(pressed: list[int], round_number: int):
    run = Run("r", BOTH, 1000)
    run.put(InputRequest(run_id="r", rank=0, question=3, prompt="?", password=False))
    view = Asking(lambda: end(run))
    outcome, told = wait(run, view)
    assert outcome is run.outcome
    assert (len(view.asked), told, pressed) == (1, [], [])


def question(rank: int, number: int = 0) -> InputRequest:
    return InputRequest(run_id="r", rank=rank, question=number, prompt="?", password=False)


def test_questions_that_are_open_at_once_are_asked_in_the_order_of_ranks(pressed: list[int]):
    run = Run("r", RankSet.all(5), 1000)
    for rank in (3, 1, 0):  # not all of them ask
        run.put(question(rank))

    class Answering(RecordingView):
        def ask(self, request: InputRequest) -> str:
            if request.rank == 0 and request.question == 0:
                run.put(question(0, 1))  # it has its next turn after the others
            answer = super().ask(request)
            if request.question == 1:
                end(run)
            return answer

    view = Answering("abcd")
    _, told = wait(run, view)
    order = [(asked.rank, asked.question) for asked in view.asked]
    assert order == [(0, 0), (1, 0), (3, 0), (0, 1)]
    assert told[:3] == ["reply 0", "reply 1", "reply 3"]


def test_an_interrupt_ends_all_that_is_to_be_asked(pressed: list[int]):
    run = Run("r", BOTH, 1000)
    for rank in (1, 0):
        run.put(question(rank))
    view = RecordingView([KeyboardInterrupt(), "never"])
    told: list[str] = []

    def interrupt() -> None:
        told.append("interrupt")
        end(run)

    CellWait(
        run, view, interrupt=interrupt, abandon=lambda: None,
        reply=lambda rank, reply: told.append(f"reply {rank}"),
    ).wait()  # fmt: skip
    assert [asked.rank for asked in view.asked] == [0]
    assert told == ["interrupt"]


def test_a_question_of_a_cell_that_has_ended_is_not_asked(pressed: list[int]):
    run = Run("r", BOTH, 1000)
    run.put(InputRequest(run_id="r", rank=0, question=3, prompt="?", password=False))
    end(run)
    view = RecordingView(["an answer"])
    assert wait(run, view) == (run.outcome, [])
    assert view.asked == []
    assert pressed == []


def test_an_interrupt_of_a_question_is_for_the_cell(pressed: list[int]):
    run = Run("r", BOTH, 1000)
    run.put(InputRequest(run_id="r", rank=0, question=3, prompt="?", password=False))
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(1.0, lambda: end(run)).start()
    view = Asking(lambda: signal.pthread_kill(main, signal.SIGINT))
    assert wait(run, view) == (run.outcome, ["interrupt"])
    assert pressed == []


def debugger(rank: int, number: int = 0) -> InputRequest:
    return InputRequest(
        run_id="r",
        rank=rank,
        question=number,
        prompt="?",
        password=False,
        debugger=Site(line=number),
    )


def output(rank: int, text: str) -> Output:
    return Output(run_id="r", rank=rank, stream="stdout", text=text)


class Debugged:
    """Ranks whose debuggers answer each command in an order of their own."""

    def __init__(self, run: Run, order: tuple[int, ...]) -> None:
        self._run = run
        self._order = order
        self._waiting: dict[int, InputReply] = {}
        self.sent: list[tuple[int, str | None]] = []

    def reply(self, rank: int, reply: InputReply) -> None:
        self.sent.append((rank, reply.value))
        self._waiting[rank] = reply
        if reply.value == "p x" and len(self._waiting) < len(self._order):
            return
        for each in self._order:
            if (got := self._waiting.pop(each, None)) is None:
                continue
            if got.value in ("c", "q", None):
                end(self._run)
                return
            self._run.put(output(each, f"{got.value} {each}"))
            self._run.put(debugger(each, got.question + 1))


BUSY = Predicate(RankVerb.IS, " busy")


def debug(
    ranks: int, *answers: str | BaseException, order: tuple[int, ...]
) -> tuple[RecordingView, Debugged]:
    run = Run("r", RankSet.all(ranks), 1000)
    for rank in order:
        run.put(debugger(rank))
    view, debugged = RecordingView(answers), Debugged(run, order)
    CellWait(
        run, view, interrupt=lambda: None, abandon=lambda: None, reply=debugged.reply,
        describe=lambda: {rank: PerRank(rank, "running", BUSY) for rank in range(ranks + 1)},
    ).wait()  # fmt: skip
    return view, debugged


def test_a_debugger_keeps_the_prompt(pressed: list[int]):
    view, debugged = debug(3, "n", "n", "rank 2", "s", "c", order=(2, 0, 1))
    assert [asked.rank for asked in view.asked] == [0, 0, 0, 2, 2]
    assert debugged.sent == [(0, "n"), (0, "n"), (2, "s"), (2, "c")]
    assert "the prompt is on rank 2" in view.told[-1]


def test_answers_to_a_command_for_all_are_shown_in_the_order_of_ranks(pressed: list[int]):
    view, debugged = debug(3, "all p x", "c", order=(2, 0, 1))
    assert debugged.sent == [(0, "p x"), (1, "p x"), (2, "p x"), (0, "c")]
    assert view.texts() == {0: "p x 0", 1: "p x 1", 2: "p x 2"}
    assert [event.rank for event in view.events if isinstance(event, Output)] == [0, 1, 2]
    assert [asked.rank for asked in view.asked] == [0, 0]


def stop(rank: int) -> InputRequest:
    operation = Operation(1, "0", Signature("collective", "barrier"), "scheduled")
    return InputRequest(
        run_id="r", rank=rank, question=0, prompt="", password=False, stop=operation
    )


def test_the_prompt_of_stopped_ranks_does_not_come_before_the_answer_of_a_debugger(
    pressed: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(step_turns, "_PATIENCE_S", 0.0)  # the user has looked for longer
    run = Run("r", BOTH, 1000)
    run.put(debugger(0))
    run.put(stop(1))

    def reply(rank: int, answer: InputReply) -> None:
        if rank == 1:
            end(run)
        elif answer.value == "p x":
            threading.Timer(0.3, lambda: run.put(debugger(0, 1))).start()

    view = RecordingView(["p x", "c", "step"])
    CellWait(run, view, interrupt=lambda: None, abandon=lambda: None, reply=reply).wait()
    assert [asked.rank for asked in view.asked] == [0, 0, 1]


def test_stops_of_ranks_that_are_freed_are_left(pressed: list[int]):
    run = Run("r", BOTH, 1000)
    run.put(stop(1))
    run.put(VerdictReached("r", Report("r", pg_ids=("0",)), acted=True))
    end(run)
    _, told = wait(run, view := RecordingView())
    assert (view.asked, told) == ([], [])
    assert [request.rank for request in view.left_prompts] == [1]


def test_the_list_names_ranks_outside_of_debuggers(pressed: list[int]):
    view, _ = debug(2, "ranks", "c", order=(1, 0))
    assert view.told[-1].splitlines()[1:] == ["rank 2     is busy", "the prompt is on rank 0"]


def test_the_end_of_input_leaves_one_debugger(pressed: list[int]):
    _, debugged = debug(2, EOFError(), order=(1, 0))
    assert debugged.sent == [(0, "q")]


def test_a_cell_that_runs_again_passes_its_breakpoints():
    assert SilentView().ask(debugger(0)) == "c"
    with pytest.raises(EOFError, match="in a cell that runs again"):
        SilentView().ask(question(0))


def test_the_view_is_told_which_ranks_are_at_a_prompt(pressed: list[int]):
    view, _ = debug(3, "rank 2", "all c", order=(2, 0, 1))
    came = [event.rank for event in view.events if isinstance(event, InputRequest)]
    assert came == [2, 0, 1]
    assert [request.rank for request in view.left_prompts] == [0, 1, 2]


def test_prompts_that_an_interrupt_ends_are_left(pressed: list[int]):
    run = Run("r", BOTH, 1000)
    for request in (debugger(0), debugger(1)):
        run.put(request)
    view = RecordingView([KeyboardInterrupt()])
    CellWait(
        run, view, interrupt=lambda: threading.Timer(0.3, lambda: end(run)).start(),
        abandon=lambda: None, reply=lambda rank, reply: None,
    ).wait()  # fmt: skip
    assert [request.rank for request in view.left_prompts] == [0, 1]


def test_debuggers_of_all_ranks_end_without_a_user(pressed: list[int]):
    view, debugged = debug(2, order=(1, 0))
    assert debugged.sent == [(1, None), (0, None)]
    assert len(view.asked) == 1


@pytest.mark.parametrize(("more_s", "ticks"), [(math.inf, 0), (0.0, 11)])
def test_events_that_come_together_are_shown_together(
    more_s: float, ticks: int, monkeypatch: pytest.MonkeyPatch
):
    """What the view does in a tick grows with the ranks. Here the cell has ended."""

    class Counting(RecordingView):
        ticks = 0

        def tick(self) -> float | None:
            self.ticks += 1
            return super().tick()

    monkeypatch.setattr(cell_wait, "_MORE_S", more_s)
    run = Run("r", BOTH, 1 << 20)
    for number in range(10):
        run.put(Output(run_id="r", rank=number % 2, stream="stdout", text=str(number)))
    end(run)
    view = Counting()
    wait(run, view)
    assert view.ticks == ticks
    assert view.texts() == {0: "02468", 1: "13579"}
