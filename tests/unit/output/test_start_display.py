"""The line that shows the start of a pool."""

import msgspec
import pytest

from nbddp.controller.state import Phase, PoolSnapshot, RankInfo, RankState, Repair
from nbddp.notebook.output import StartDisplay, TerminalSink
from nbddp.notebook.output.start_display import progress_line
from nbddp.wire.rank_set import NO_RANKS, RankSet
from tests.support.sinks import PageSink

STARTING, IDLE = RankState.STARTING, RankState.IDLE


def snapshot_of(
    *states: RankState, phase: Phase = Phase.RANKS, generation: int = 0, made: int = 9
) -> PoolSnapshot:
    return PoolSnapshot(
        phase=phase,
        generation=generation,
        ranks=tuple(
            RankInfo(rank=rank, node=0, state=state, pid=77 if rank < made else 0)
            for rank, state in enumerate(states)
        ),
        run_id=None,
        active_run_id=None,
        joining=NO_RANKS,
        lost_agents=frozenset(),
        store_is_lost=False,
    )


def test_the_line_counts_the_ranks_that_are_ready():
    assert progress_line(snapshot_of(STARTING, IDLE, IDLE)) == "starting 3 ranks ... 2 of 3 ready"
    assert progress_line(snapshot_of(STARTING)) == "starting 1 rank ... 0 of 1 ready"


@pytest.mark.parametrize(
    ("snapshot", "step"),
    [
        (snapshot_of(STARTING, phase=Phase.AGENTS), "starting the agent"),
        (snapshot_of(STARTING, phase=Phase.STORE), "importing torch, once for all ranks"),
        (snapshot_of(STARTING, phase=Phase.STORE, generation=1), "starting the store"),
        (snapshot_of(STARTING, STARTING, made=1), "processes made: 1 of 2"),
        (snapshot_of(STARTING, STARTING), "0 of 2 ready"),
        (snapshot_of(IDLE, IDLE, phase=Phase.STOPPING), "ending the old processes"),
    ],
)
def test_the_line_names_the_step_that_takes_the_time(snapshot: PoolSnapshot, step: str):
    assert progress_line(snapshot).endswith(f" ... {step}")


@pytest.mark.parametrize(
    ("repair", "states", "step"),
    [
        ("ends", (IDLE, IDLE, IDLE), "ending the old process"),
        ("starts", (IDLE, IDLE, STARTING), "0 of 1 ready"),
        ("looks", (IDLE, IDLE, IDLE), "asking ranks 0-1 for their process groups"),
        ("looks", (IDLE, RankState.EXITED, IDLE), "asking rank 0 for its process groups"),
        ("forms", (IDLE, IDLE, IDLE), "making the process groups again with ranks 0-1"),
        ("", (IDLE, RankState.BUSY, RankState.EXITED), "waiting for rank 1, still in a cell"),
        ("", (IDLE, IDLE, IDLE), ""),
    ],
)
def test_the_line_of_a_replaced_rank_names_the_step(
    repair: Repair, states: tuple[RankState, ...], step: str
):
    shown = msgspec.structs.replace(
        snapshot_of(*states, phase=Phase.UP), repair=repair, replacing=RankSet.of([2])
    )
    assert progress_line(shown) == f"replacing rank 2 ... {step}".rstrip()


def test_a_line_changes_in_place_and_a_text_follows():
    page = PageSink()
    display = StartDisplay(page, has_live=True)
    has_shown = [display.is_shown]
    display.show(snapshot_of(STARTING, STARTING))
    display.show(snapshot_of(STARTING, STARTING))
    display.show(snapshot_of(STARTING, IDLE))
    assert [*has_shown, display.is_shown] == [False, True]
    assert page.messages == 2  # unchanged lines are not sent
    display.end("2 processes")
    assert page.messages == 4  # the line is removed
    assert page.plain == "2 processes"


def test_without_a_text_nothing_stays():
    page = PageSink()
    display = StartDisplay(page, has_live=True)
    display.end("")
    assert page.messages == 0
    display.show(snapshot_of(STARTING))
    display.end("")
    assert page.outputs == []


def test_without_a_live_line_only_the_text_is_printed(capsys: pytest.CaptureFixture[str]):
    display = StartDisplay(TerminalSink(), has_live=False)
    display.show(snapshot_of(STARTING))
    display.end("1 process")
    assert capsys.readouterr() == ("1 process\n", "")


def test_the_wait_for_another_agent_has_a_line_of_its_own():
    waits_for = "waits for another agent in the place of node 1 (n2)\nssh to n1, n3"
    shown = msgspec.structs.replace(
        snapshot_of(IDLE, phase=Phase.UP), joined=0, waits_for=waits_for
    )
    assert progress_line(shown) == "replacing a lost node ... nodes joined: 0 of 1"
