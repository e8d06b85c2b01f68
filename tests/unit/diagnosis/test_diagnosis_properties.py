"""Promises of the diagnosis that hold for any program of any ranks, however it is scheduled."""

import copy
import json
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nbddp.controller.diagnosis import RankView, Report, diagnose
from nbddp.wire.rank_set import RankSet
from tests.support.programs import Step, World, silenced

GROUPS: dict[str, tuple[int, ...]] = {
    "world": (0, 1, 2, 3),
    "left": (0, 1, 2),
    "right": (1, 2, 3),
    "pair": (0, 3),
}
COUNT = 4


def examples(count: int) -> settings:
    """So many, however slow this machine is."""
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Event:
    """Something that ranks do together."""

    kind: str
    group: str
    ends: tuple[int, int]
    tag: int
    lag: int  #: of those who wait later: so many steps later
    eager: int  #: ranks that do not wait at once, as bits


@dataclass(frozen=True)
class Spoiler:
    """A mistake in one rank's program."""

    kind: str
    rank: int
    at: int


events = st.builds(
    Event,
    st.sampled_from(["collective", "collective", "message", "key"]),
    st.sampled_from(sorted(GROUPS)),
    st.permutations(range(COUNT)).map(lambda order: (order[0], order[1])),
    st.integers(0, 1),
    st.integers(0, 3),
    st.sampled_from([0, 0, 1, 2, 5, 10, 15]),
)
spoilers = st.builds(
    Spoiler,
    st.sampled_from(["drop", "swap", "op", "tag", "repeat", "raise", "die", "peer"]),
    st.integers(0, COUNT - 1),
    st.integers(0, 12),
)
seeds = st.integers(0, 1 << 30)


def programs_of(made: list[Event]) -> list[list[Step]]:
    """Each event as a step of all ranks that take part, in the same order everywhere."""
    programs: list[list[Step]] = [[] for _ in range(COUNT)]
    late: list[list[int]] = [[] for _ in range(COUNT)]

    def add(rank: int, step: Step, event: Event) -> None:
        is_async = bool(event.eager >> rank & 1) and step.kind in ("collective", "send", "recv")
        programs[rank].append(replace(step, is_async=is_async))
        if is_async:
            late[rank].append(event.lag)
        for index, lag in enumerate(late[rank]):
            late[rank][index] = lag - 1
        while late[rank] and late[rank][0] <= 0:
            late[rank].pop(0)
            programs[rank].append(Step("wait"))

    for number, event in enumerate(made):
        first, second = event.ends
        match event.kind:
            case "collective":
                for rank in GROUPS[event.group]:
                    add(rank, Step("collective", event.group), event)
            case "message":
                add(first, Step("send", "world", peer=second, tag=event.tag), event)
                add(second, Step("recv", "world", peer=first, tag=event.tag), event)
            case _:
                add(first, Step("set", key=f"k{number}"), event)
                add(second, Step("get", key=f"k{number}"), event)
    for rank in range(COUNT):
        programs[rank] += [Step("wait")] * len(late[rank])
    return programs


def spoil(programs: list[list[Step]], spoiler: Spoiler) -> None:
    program = programs[spoiler.rank]
    if not program:
        return
    at = spoiler.at % len(program)
    step = program[at]
    match spoiler.kind:
        case "drop":
            del program[at]
        case "swap" if at + 1 < len(program):
            program[at], program[at + 1] = program[at + 1], program[at]
        case "op":
            program[at] = replace(step, op="broadcast")
        case "tag":
            program[at] = replace(step, tag=7)
        case "repeat":
            program.insert(at, step)
        case "peer" if step.kind in ("send", "recv"):
            program[at] = replace(step, peer=(step.peer + 1) % COUNT)
        case "raise":
            program.insert(at, Step("raise"))
        case "die":
            program.insert(at, Step("die"))
        case _:
            pass


def with_any_source(programs: list[list[Step]]) -> None:
    for program in programs:
        for at, step in enumerate(program):
            if step.kind == "recv" and at % 2:
                program[at] = replace(step, peer=-1)


def with_backward(programs: list[list[Step]]) -> None:
    for program in programs:
        for at, step in enumerate(program):
            if step.kind == "wait" and at % 2:
                program[at] = Step("backward")


def explain(views: dict[int, RankView]) -> Report:
    return diagnose(views, now_ns=1, run_id="run")


def check_that_stuck_ranks_never_move(world: World, report: Report) -> None:
    """Checks that stuck ranks never move, whatever happens next; two continuations are tried."""
    for seed in range(2 if report.verdict else 0):
        later = copy.deepcopy(world)
        later.random.seed(seed)
        later.run()
        for rank in report.stuck:
            before, after = world.ranks[rank], later.ranks[rank]
            assert after.status == "running", (rank, report.findings)
            assert after.position == before.position, (rank, report.findings)
    assert report.verdict == any(finding.proven and finding.waiting for finding in report.findings)


def check_form(report: Report) -> None:
    """Checks the conditions that any report meets."""
    told = report.to_dict()
    assert json.loads(json.dumps(told)) == told
    claimed = [rank for finding in report.proven for rank in finding.waiting]
    assert sorted(claimed) == list(report.stuck), "each stuck rank is put down to one cause"
    assert not {rank for each in report.notices for rank in each.waiting} & set(report.stuck)
    assert set(report.stuck) <= set(report.involved)
    assert [each.proven for each in report.findings] == sorted(
        (each.proven for each in report.findings), reverse=True
    )
    for finding in report.findings:
        assert set(finding.ranks) >= set(finding.culprits) | set(finding.waiting)
        assert finding.headline
        assert finding.next_step


@examples(150)
@given(
    made=st.lists(events, max_size=8),
    mistakes=st.lists(spoilers, max_size=2),
    threads=st.dictionaries(st.integers(0, COUNT - 1), st.lists(events, max_size=3), max_size=1),
    flavour=st.sampled_from(["", "any", "backward"]),
    last=st.sampled_from([None, 1, 3]),
    pauses=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    silent=st.sampled_from([(), (), (1,), (0, 2)]),
    tells_counts=st.booleans(),
    seed=seeds,
)
def test_a_rank_that_can_continue_is_never_called_stuck(
    *,
    made: list[Event],
    mistakes: list[Spoiler],
    threads: dict[int, list[Event]],
    flavour: str,
    last: int | None,
    pauses: list[int],
    silent: tuple[int, ...],
    tells_counts: bool,
    seed: int,
):
    programs = programs_of(made)
    for mistake in mistakes:
        spoil(programs, mistake)
    if flavour == "any":
        with_any_source(programs)
    elif flavour == "backward":
        with_backward(programs)
    # A second thread takes part in what others do, too: by chance it helps, or takes it away.
    others = {rank: programs_of(events)[rank] for rank, events in threads.items()}
    world = World(GROUPS, programs, seed, others=others)
    world.tells_counts = tells_counts
    for pause in [*pauses, None]:
        world.run(pause)
        if world.random.random() < 0.5:
            world.notice(world.random.choice(world.ranks))
        world.wake()
        report = explain(silenced(world.views(last), silent))
        check_form(report)
        assert not set(report.stuck) & set(silent)
        check_that_stuck_ranks_never_move(world, report)


@examples(60)
@given(st.lists(events, max_size=10), st.lists(st.integers(1, 9), max_size=6), seeds)
def test_a_correct_program_is_never_called_proven(made: list[Event], pauses: list[int], seed: int):
    world = World(GROUPS, programs_of(made), seed)
    for pause in pauses:
        world.run(pause)
        world.wake()
        report = explain(world.views())
        assert not report.verdict
        assert not report.proven
        check_form(report)
    world.run()
    assert all(rank.status == "finished" for rank in world.ranks)
    assert explain(world.views()).findings == ()


@example(
    [
        Event("collective", "left", (0, 1), 0, 0, 0),
        Event("message", "left", (0, 2), 1, 0, 0),
        Event("message", "left", (1, 2), 1, 0, 0),
    ],
    [Spoiler("die", 2, 2)],
    True,
    0,
)
@examples(150)
@given(
    st.lists(events, min_size=1, max_size=8),
    st.lists(spoilers, min_size=1, max_size=2),
    st.booleans(),
    seeds,
)
def test_a_deadlock_is_always_proven_and_names_the_waiting_ranks(
    made: list[Event], mistakes: list[Spoiler], from_any: bool, seed: int
):
    programs = programs_of(made)
    for mistake in mistakes:
        spoil(programs, mistake)
    if from_any:
        with_any_source(programs)
    world = World(GROUPS, programs, seed)
    world.run()
    for rank in world.ranks:
        if rank.status != "dead":
            world.notice(rank)
    waiting = RankSet.of(rank.rank for rank in world.ranks if rank.status == "running")
    report = explain(world.views())
    dead = RankSet.of(rank.rank for rank in world.ranks if rank.status == "dead")
    if dead and from_any:
        # A dead rank that received from any source may have taken any message that was on its way
        # to it: which sender waits forever is not known. A death frees all of them anyway.
        assert set(report.stuck) <= set(waiting)
        return
    assert report.stuck == waiting
    assert report.verdict == bool(waiting)
    assert report.notices == ()
    check_form(report)
    for finding in report.proven:
        if finding.kind == "dead-rank":
            assert finding.culprits == dead
        if finding.kind == "first-error":
            assert {world.ranks[rank].status for rank in finding.culprits} == {"raised"}
        if finding.kind == "missing-rank":
            assert {world.ranks[rank].status for rank in finding.culprits} == {"finished"}


@examples(100)
@given(
    made=st.lists(events, min_size=1, max_size=8),
    mistakes=st.lists(spoilers, max_size=2),
    pauses=st.lists(st.integers(0, 4), min_size=2 * COUNT, max_size=2 * COUNT),
    order=st.permutations(range(COUNT)),
    before=st.integers(0, 30),
    seed=seeds,
)
def test_two_rounds_of_looks_that_agree_are_one_moment(
    *,
    made: list[Event],
    mistakes: list[Spoiler],
    pauses: list[int],
    order: list[int],
    before: int,
    seed: int,
):
    """Each rank is seen at another moment; the verdict is about all of them."""
    programs = programs_of(made)
    for mistake in mistakes:
        spoil(programs, mistake)
    world = World(GROUPS, programs, seed)
    world.run(before)
    rounds = []
    for number in range(2):
        views = {}
        for index, rank in enumerate(order):
            views[rank] = world.view(world.ranks[rank])
            world.run(pauses[number * COUNT + index])
        rounds.append(views)
        world.wake()
    report = explain(rounds[0])
    if all(is_unchanged(rounds[0][rank], rounds[1][rank]) for rank in report.involved):
        check_that_stuck_ranks_never_move(world, report)


def is_unchanged(first: RankView, again: RankView) -> bool:
    if first.look is None or again.look is None:
        return first.state == again.state
    return first.look.version == again.look.version


@examples(40)
@given(st.lists(events, min_size=1, max_size=6), spoilers, seeds, st.integers(0, 10**12))
def test_a_fingerprint_ignores_time(made: list[Event], mistake: Spoiler, seed: int, now_ns: int):
    programs = programs_of(made)
    spoil(programs, mistake)
    world = World(GROUPS, programs, seed)
    world.run()
    views = world.views()
    one = diagnose(views, now_ns=1, run_id="run")
    other = diagnose(views, now_ns=now_ns, run_id="run")
    assert one.fingerprint == other.fingerprint
    assert one.to_dict()["fingerprint"] == one.fingerprint
