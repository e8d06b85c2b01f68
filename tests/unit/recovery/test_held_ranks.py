"""``on_deadlock=debug``: nobody is freed before the user has seen the deadlock."""

from nbddp.controller.state.stimuli import FreeRequested, InterruptRequested
from nbddp.wire.messages import AskWhileStuck
from tests.support.recovering import kinds, requests
from tests.support.recovery_scenes import judged, stuck_pool


def test_all_ranks_ask_and_nobody_is_freed():
    pool, run_id = stuck_pool()
    pool.configure(on_deadlock="debug")
    actions = judged(pool)
    assert kinds(actions) == ["NoticeChanged", "RanksHeld", "AskWhileStuck 0-2"]
    assert requests(actions, AskWhileStuck)[0][1].run_id == run_id
    assert judged(pool, after_s=0.5) == []  # they are asked once


def test_free_is_what_happens_by_default():
    pool, run_id = stuck_pool()
    pool.configure(on_deadlock="debug")
    judged(pool)
    looks = pool.feed(FreeRequested(run_id, is_last=False))
    actions = pool.answer_looks(pool.answer_looks(looks))
    assert kinds(actions) == ["VerdictReached", "AbortOperations arm 0-2"]


def test_a_later_deadlock_opens_the_prompt_again_unless_the_user_has_quit():
    for is_last in (False, True):
        pool, run_id = stuck_pool()
        pool.configure(on_deadlock="debug")
        judged(pool)
        looks = pool.feed(FreeRequested(run_id, is_last=is_last))
        pool.answer_free(pool.answer_looks(pool.answer_looks(looks)))
        assert ("RanksHeld" in kinds(judged(pool, after_s=1.5))) == (not is_last)


def test_an_interrupt_frees_the_ranks():
    pool, run_id = stuck_pool()
    pool.configure(on_deadlock="debug")
    judged(pool)
    pool.feed(InterruptRequested(run_id))
    assert "AbortOperations arm 0,2" in kinds(pool.tick(after_s=0.15))


def test_a_line_for_another_cell_frees_nobody():
    pool, _ = stuck_pool()
    pool.configure(on_deadlock="debug")
    judged(pool)
    assert pool.feed(FreeRequested("another", is_last=False)) == []
