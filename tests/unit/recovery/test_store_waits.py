"""Waits for keys of the store: a verdict needs a check of the store after the first round."""

from nbddp.controller.state.actions import Action
from nbddp.wire.messages import AbortOperations
from nbddp.wire.rank_set import RankSet
from tests.support.recovering import Pool, kinds, requests, seen, verdict, world
from tests.support.recovery_scenes import stuck_pool


def test_waits_for_the_store_have_the_empty_group_id():
    pool, _ = stuck_pool()
    pool.report = verdict((0, 2), (0, 2), "store-wait", (), waits_for_store=RankSet.of([0, 2]))
    assert pool.answer_looks(pool.quiet(0, 2)) == []
    actions = _actions_after_checks(pool, {0: 10, 2: 60})
    assert kinds(actions) == ["VerdictReached", "AbortOperations arm 0,2"]
    [(ranks, free)] = requests(actions, AbortOperations)
    assert ranks == (0, 2)
    assert free.pg_ids == ("",)


def _actions_after_checks(pool: Pool, ages_ms: dict[int, int | None]) -> list[Action]:
    """Actions after the next second round, with the ages of the ranks' last store checks."""
    deadline = pool.machine.next_deadline()
    assert deadline is not None
    second = pool.tick(after_s=deadline - pool.now)
    assert kinds(second) == ["DescribeRank 0,2"]
    for rank, age_ms in ages_ms.items():
        age_ns = None if age_ms is None else age_ms * 1_000_000
        pool.looks[rank] = seen(rank, groups=(world(3, seq=1),), key_check_age_ns=age_ns)
    return pool.answer_looks(second)


def _pool_waiting_for_keys() -> Pool:
    pool, _ = stuck_pool()
    pool.report = verdict((0, 2), (0, 2), "store-wait", (), waits_for_store=RankSet.of([0, 2]))
    assert pool.answer_looks(pool.quiet(0, 2)) == []
    return pool


def test_a_look_into_the_store_before_the_first_round_proves_nothing():
    """Setting a key leaves no record: the key may have been set since."""
    pool = _pool_waiting_for_keys()
    assert _actions_after_checks(pool, {0: 10, 2: 61}) == []
    assert _actions_after_checks(pool, {0: 10, 2: 111}) == []
    assert kinds(_actions_after_checks(pool, {0: 10, 2: 20})) == [
        "VerdictReached",
        "AbortOperations arm 0,2",
    ]


def test_ranks_that_do_not_tell_when_they_looked_into_the_store_are_given_time():
    pool = _pool_waiting_for_keys()
    began = pool.now
    while not (actions := _actions_after_checks(pool, {0: 10, 2: None})):
        assert pool.now - began < 1
    assert kinds(actions) == ["VerdictReached", "AbortOperations arm 0,2"]
    assert pool.now - began >= 0.4


def test_a_store_that_does_not_answer_proves_nothing():
    pool = _pool_waiting_for_keys()
    began = pool.now
    actions: list[Action] = []
    while not actions:
        assert pool.now - began < 2
        assert pool.quiet(0, 2) == []
        age_ms = int((pool.now - began) * 1000) + 200
        actions = _actions_after_checks(pool, {0: 10, 2: age_ms})
    assert kinds(actions) == ["DescribeRank 0-2"]  # from the beginning
