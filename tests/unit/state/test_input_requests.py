"""No rank waits at a prompt for a cell that is over."""

import msgspec

from nbddp.controller.state.actions import EndRun, LifeAction, SendToRanks
from nbddp.controller.state.stimuli import (
    AbandonRequested,
    InputAnswered,
    InterruptRequested,
    StopRequested,
    Tick,
)
from nbddp.settings import Settings
from nbddp.wire.flight_recorder import Site
from nbddp.wire.messages import ImportChanged, InputReply, InputRequest
from nbddp.wire.rank_set import RankSet
from tests.support.machines import Pool, outcome_in

SETTINGS = Settings(interrupt_grace_s=2.0)


def ask(run_id: str, rank: int, question: int = 1) -> InputRequest:
    return InputRequest(run_id=run_id, rank=rank, question=question, prompt="?", password=False)


def ended(actions: list[LifeAction]) -> list[tuple[str, int, int]]:
    """The questions that get an end of input: run, rank and number."""
    found = []
    for action in actions:
        if isinstance(action, SendToRanks) and isinstance(action.request, InputReply):
            assert action.request.value is None
            assert action.request.reason == "the cell that asked has ended"
            [rank] = action.ranks
            found.append((action.request.run_id, rank, action.request.question))
    return found


def make() -> Pool:
    return Pool(3, settings=SETTINGS).start()


def test_open_questions_end_with_the_cell_that_is_given_up():
    pool = make()
    run_id = pool.run()
    for rank, question in ((0, 1), (2, 1), (2, 2), (1, 4)):
        assert pool.feed(ask(run_id, rank, question)) == []
    pool.feed(InputAnswered(1, 4))
    assert ended(pool.feed(InterruptRequested(run_id))) == []  # it may ask again
    actions = pool.feed(AbandonRequested(run_id))
    assert isinstance(actions[-1], EndRun)
    assert ended(actions) == [(run_id, 0, 1), (run_id, 2, 1), (run_id, 2, 2)]
    asked = "last seen at a prompt, which now ends"
    assert [result.stuck for result in outcome_in(actions).results.values()] == [asked, "", asked]


def test_ranks_that_import_a_library_when_the_cell_is_given_up_are_said_to():
    pool = make()
    run_id = pool.run()
    pool.feed(ImportChanged(run_id=run_id, rank=0, module="scipy"))
    for module in ("torch._dynamo", ""):
        pool.feed(ImportChanged(run_id=run_id, rank=1, module=module))
    pool.feed(ImportChanged(run_id="an earlier cell", rank=2, module="scipy"))
    pool.feed(InterruptRequested(run_id))
    results = outcome_in(pool.feed(AbandonRequested(run_id))).results
    imports = "last seen importing scipy, which an interrupt waits for"
    assert [result.stuck for result in results.values()] == [imports, "", ""]


def test_a_question_that_comes_later_ends_at_once():
    pool = make()
    old = pool.run()
    pool.feed(AbandonRequested(old))
    assert ended(pool.feed(ask(old, 0))) == [(old, 0, 1)]
    pool.finished(1, old)
    new = pool.run("1")
    assert ended(pool.feed(ask(new, 1))) == []
    assert ended(pool.feed(ask(old, 2, 7))) == [(old, 2, 7)]


def test_a_cell_whose_time_is_up_ends_its_questions_when_it_is_given_up():
    pool = make()
    run_id = pool.run("0", timeout_s=5.0)
    pool.feed(ask(run_id, 0))
    assert ended(pool.feed(Tick(), after_s=5.0)) == []
    pool.feed(ask(run_id, 0, 2))  # a debugger asks again
    assert (run_id, 0, 2) in ended(pool.feed(Tick(), after_s=SETTINGS.interrupt_grace_s))


def test_the_timeout_of_a_cell_stands_still_while_a_debugger_asks():
    pool = make()
    run_id = pool.run("0", timeout_s=5.0)
    stopped = msgspec.structs.replace(ask(run_id, 0), debugger=Site(cell=1, line=2))
    pool.feed(stopped, after_s=4.0)
    assert pool.machine.next_deadline() is None
    assert pool.feed(Tick(), after_s=100.0) == []
    assert not pool.feed(InputAnswered(0, stopped.question))
    assert pool.machine.next_deadline() == pool.now + 1.0
    assert pool.feed(Tick(), after_s=0.9) == []
    assert pool.feed(Tick(), after_s=0.1) != []


def test_the_timeout_goes_on_when_the_asking_rank_has_ended():
    pool = make()
    run_id = pool.run(timeout_s=5.0)
    pool.feed(msgspec.structs.replace(ask(run_id, 0), debugger=Site(cell=1, line=2)))
    pool.finished(0, run_id)
    assert pool.machine.next_deadline() == pool.now + 5.0


def test_ranks_that_have_ended_get_no_end_of_input():
    pool = make()
    pool.feed(ask(pool.run(), 0))
    actions = pool.feed(StopRequested())
    assert ended(actions) == []
    assert isinstance(actions[-1], EndRun)


def test_a_rank_that_asks_again_after_every_end_is_left_at_its_prompt():
    pool = make()
    old = pool.run("0")
    pool.feed(AbandonRequested(old))
    answered = [number for number in range(100) if ended(pool.feed(ask(old, 0, number)))]
    assert answered == list(range(20))
    pool.finished(0, old)
    new = pool.run("0")
    pool.feed(AbandonRequested(new))
    assert pool.feed(ask(new, 0, 500)) == [
        SendToRanks(
            RankSet.of([0]),
            InputReply(
                run_id=new, question=500, value=None, reason="the cell that asked has ended"
            ),
        )
    ]
