"""Rebuilds a pool: replaces ranks that exited, and forms broken groups again in place.

Runs in: the hub thread. Pure; a part of `nbddp.controller.recovery.machine`.

    dead ranks --RespawnRequested--> PoolMachine --StartRanks--> ready
        --DescribeRank--> groups of the survivors --RebuildGroups--> GroupsRebuilt

The survivors know the process groups, and a fresh rank gets its groups by `RebuildGroups`. If all
ranks have exited at once, there is nothing to keep, and the whole pool is restarted. If they have
exited one after another, so that all living ranks are fresh, these make a default group as at the
start.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from functools import partial
from typing import Final

import msgspec

from nbddp.controller.recovery.abort import both_phases
from nbddp.controller.recovery.pending_answers import Answers, PendingAnswers, looks_of
from nbddp.controller.recovery.silence import SilentRanks
from nbddp.controller.state import (
    Action,
    Phase,
    PoolMachine,
    RankState,
    Repair,
    RespawnRequested,
    RestartRequested,
    SendToAgent,
    SendToRanks,
    silent_since_text,
)
from nbddp.settings import Settings
from nbddp.wire.flight_recorder import GroupInfo, RankLook
from nbddp.wire.messages import (
    AbortOperations,
    DescribeRank,
    GroupsRebuilt,
    KillRanks,
    RebuildGroups,
)
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet

#: Number of attempts of a rebuild in which a rank exits or fails.
MAX_TRIES = 3
#: Ranks that exit together are replaced together.
_SETTLE_S = 0.05


class _Step(Enum):
    """The step of a rebuild."""

    NONE = auto()
    SETTLE = auto()  # waits for more exits
    RESPAWN = auto()  # waits for fresh ranks
    RESTART = auto()  # waits for the whole pool
    LOOK = auto()  # waits for the survivors' groups
    REFORM = auto()  # waits for groups to be formed


#: The steps that a snapshot names.
_REPAIRS: Final[Mapping[_Step, Repair]] = {
    _Step.RESPAWN: "starts",
    _Step.LOOK: "looks",
    _Step.REFORM: "forms",
}
_GROUPS_UNKNOWN = "no rank is left that knows the process groups"
#: Stands for the ids of groups that no rank has reported.
_UNKNOWN = "?"


class PoolRebuild:
    """One rebuild at a time, and the groups that are still broken.

    Args:
        pool: the pool of these ranks.
        questions: shared with the rest of the recovery.
        settings: limits.
        silent: the ranks of which nothing is heard.
        then: called at the end of a rebuild with its failure and the ranks that are fresh.
    """

    def __init__(
        self,
        pool: PoolMachine,
        questions: PendingAnswers,
        settings: Settings,
        silent: SilentRanks,
        then: Callable[[str, RankSet, float], list[Action]],
    ) -> None:
        self._pool = pool
        self._questions = questions
        self._settings = settings
        self._silent = silent
        self.waits_for_silent = False  #: the last rebuild failed since a node was silent
        self._then = then
        self.broken: set[str] = set()  #: ids of groups that must be rebuilt
        self.failure = ""  #: of the last rebuild
        self._step = _Step.NONE
        self._respawn = NO_RANKS  #: ranks to replace with fresh processes
        self._forms_all = False
        self._joining: set[Rank] = set()  #: fresh ranks that do not have all their groups
        self._fresh: set[Rank] = set()  #: ranks that this rebuild has replaced
        self._tries = 0
        self._limit_s = 0.0
        self._until = 0.0
        self._settle_until = 0.0
        self._number = 0
        self._setback = ""  #: why this attempt has to be repeated
        self._start_failures: dict[Rank, str] = {}
        self._forming: tuple[GroupInfo, ...] = ()

    @property
    def is_active(self) -> bool:
        """True while a rebuild is under way."""
        return self._step is not _Step.NONE

    @property
    def refusal(self) -> str | None:
        """Why a cell cannot run on several ranks; None: it can."""
        if self.failure and self.waits_for_silent:
            return "the process groups are formed again when all nodes are heard"
        if self.failure:
            return f"the process groups could not be formed again ({self.failure})"
        return None

    def explained(self, reason: str) -> str:
        """Return why ranks cannot be used, with why they are not whole again.

        A silent node is named as it is when the user reads of it, not as it was.
        """
        is_told = self.failure and not self.waits_for_silent
        return f"{reason} ({self.failure})" if is_told else reason

    @property
    def waiting(self) -> RankSet | None:
        """The ranks whose groups are formed when silent nodes are heard; None: none is awaited."""
        return self.joining if self.waits_for_silent else None

    @property
    def joining(self) -> RankSet:
        """Fresh ranks without all their groups, because other members are still in a cell."""
        return RankSet.of(self._joining) if self._joining else NO_RANKS

    @property
    def repair(self) -> Repair:
        """The step, for a snapshot."""
        return _REPAIRS.get(self._step, "")

    @property
    def is_restarting(self) -> bool:
        """True while it restarts the whole pool."""
        return self._step is _Step.RESTART

    def next_deadline(self) -> float | None:
        """The time at which `tick` has something to do."""
        if self._step is _Step.NONE:
            return None
        return self._settle_until if self._step is _Step.SETTLE else self._until

    def expect(self, joining: RankSet) -> None:
        """Note that these ranks have no groups yet."""
        self._joining.update(joining)

    # --- events --------------------------------------------------------------------------------

    def start(
        self, respawn: RankSet, now: float, *, settle: bool = False, forms_all: bool = False
    ) -> list[Action]:
        """Begin a rebuild.

        Args:
            respawn: ranks to replace with fresh processes.
            now: monotonic time in seconds.
            settle: wait a moment for more exits.
            forms_all: form all groups, because any group may be broken.
        """
        self.failure = ""
        self.waits_for_silent = False
        self._tries = 1
        self._fresh = set()
        self._respawn = respawn
        self._forms_all = forms_all
        self._set_limit(now)
        if settle:
            self._settle(now)
            return []
        return self._begin(now)

    def rank_ready(self, now: float) -> list[Action]:
        """Go on when the last fresh rank is ready."""
        if self._step is not _Step.RESPAWN or self._pool.ranks.in_state(RankState.STARTING):
            return []
        self._set_limit(now)
        return self._look(now)

    def pool_up(self, failure: str, now: float) -> list[Action]:
        """Take the end of a restart of the whole pool; ``failure`` is empty if it succeeded."""
        if self._setback and self._tries < MAX_TRIES:
            self._setback = ""
            self._tries += 1
            return [*self._pool.handle(RestartRequested(), now)]
        if self._setback:
            failure = f"{failure}; tried {MAX_TRIES} times"
        self.broken.clear()
        self._joining.clear()
        self._fresh = set(self._pool.ranks)
        return self._end(failure, now)

    def start_failed(self, rank: Rank, reason: str) -> None:
        """Note why a fresh rank could not start; its exit may be reported later."""
        self._start_failures[rank] = reason

    def rank_exited(self, rank: Rank, exit_text: str, now: float, *, respawn: bool) -> list[Action]:
        """Take the exit of a rank, or of one that had no process, perhaps during a rebuild."""
        exit_text = self._start_failures.pop(rank, f"exited ({exit_text})")
        self._joining.discard(rank)
        self._fresh.discard(rank)
        if respawn:
            self._respawn = RankSet.of([*self._respawn, rank])
        setback = f"rank {rank} {exit_text} while the pool was being rebuilt"
        match self._step:
            case _Step.NONE:
                return []
            case _Step.RESTART:
                if self._pool.phase is Phase.FAILED:
                    self._setback = setback
                return []
            case _Step.SETTLE:
                self._settle(now)
                return []
            case _Step.REFORM:
                # The other ranks may wait for this one.
                return self._break_reform(setback, (rank,), now)
            case _:
                self._questions.drop("look", self._number)
                return self._retry(setback, now)

    def reformed(self, answer: GroupsRebuilt, now: float) -> list[Action]:
        """Take the answer of a rank; `PendingAnswers` settles the question itself."""
        if (
            self._step is not _Step.REFORM
            or answer.number != self._number
            or answer.error is None
            or self._setback
        ):
            return []
        setback = f"rank {answer.rank}: {answer.error.ename}: {answer.error.evalue}"
        return self._break_reform(setback, (), now)

    def cancel(self) -> None:
        """Cancel the rebuild, because the whole pool is restarted or stopped."""
        self._questions.drop("look", self._number)
        self._questions.drop("reform", self._number)
        self._step = _Step.NONE
        self.broken.clear()
        self._joining.clear()
        self.failure = ""
        self.waits_for_silent = False

    def tick(self, now: float) -> list[Action]:
        """Do everything that is due at ``now``."""
        if self._step is _Step.SETTLE and now >= self._settle_until:
            return self._begin(now)
        if self._step is _Step.RESPAWN and now >= self._until:
            late = self._pool.ranks.in_state(RankState.STARTING)
            verb = late.verb("was", "were")
            return self._give_up(
                f"{late.describe()} {verb} not ready within {self._limit_s:g} s", now
            )
        return []

    def nodes_silent(self, now: float) -> list[Action]:
        """End a rebuild that needs ranks which became silent; it is begun again later."""
        asked = RankSet.of(
            set(self._silent.ranks)
            & set(self._pool.ranks.in_state(RankState.IDLE, RankState.STARTING))
        )
        if not asked or self._step not in (_Step.RESPAWN, _Step.LOOK, _Step.REFORM):
            return []
        actions: list[Action] = []
        if self._step is _Step.REFORM:
            # The others may be blocked in the new groups, and their answers come too late.
            actions = self._break_reform(self._silence(asked, now), asked.ranks, now)
        self._questions.drop("look", self._number)
        self._questions.drop("reform", self._number)
        return [*actions, *self._end_for_silence(asked, now)]

    def _silence(self, ranks: RankSet, now: float) -> str:
        return silent_since_text(self._silent.among(ranks, now))

    def _end_for_silence(self, ranks: RankSet, now: float) -> list[Action]:
        self.waits_for_silent = True
        return self._end(self._silence(ranks, now), now)

    # --- steps ---------------------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        self._step = _Step.SETTLE
        self._settle_until = now + _SETTLE_S

    def _begin(self, now: float) -> list[Action]:
        self._setback = ""
        exited = self._pool.ranks.in_state(RankState.EXITED)
        dead = RankSet.of(
            rank
            for rank in exited
            if rank in self._respawn and self._pool.ranks[rank].node not in self._pool.lost_agents
        )
        # Fresh ranks have nothing to keep, and without the store they cannot make groups.
        useless = self._joining if self._pool.store_is_lost else set()
        if dead and useless.union(exited) == set(self._pool.ranks):
            if self._pool.lost_agents:
                return self._end(_GROUPS_UNKNOWN, now)
            self._step = _Step.RESTART
            return [*self._pool.handle(RestartRequested(), now)]
        if self._pool.store_is_lost:
            return self._end(f"{_lost_store(self._pool)}, and new groups need it", now)
        if not dead and not self._pool.ranks.in_state(RankState.STARTING):
            return self._look(now)
        self._step = _Step.RESPAWN
        self._fresh.update(dead)
        self._joining.update(dead)
        if dead:
            self._set_limit(now, dead)
        return [*self._pool.handle(RespawnRequested(dead), now)]

    def _look(self, now: float) -> list[Action]:
        """Ask the survivors for their groups, also those that do not leave their cell."""
        asked = self._pool.ranks.in_state(RankState.IDLE, RankState.BUSY) - RankSet.of(
            self._joining
        )
        if not asked and self._joining:
            return self._initialise_groups(now)
        self._step = _Step.LOOK
        self._number = self._questions.new_number()
        until = now + self._settings.look_timeout_s
        self._questions.ask("look", self._number, asked, until=until, then=self._looked)
        return [SendToRanks(asked, DescribeRank(number=self._number))] if asked else []

    def _initialise_groups(self, now: float) -> list[Action]:
        """Initialise a default group, because all ranks that knew the groups were replaced."""
        ranks = RankSet.of(self._pool.ranks)
        if self._pool.ranks.in_state(RankState.IDLE) != ranks:
            if not self._pool.ranks.in_state(RankState.BUSY):
                return self._end(_GROUPS_UNKNOWN, now)
            self.broken.add(_UNKNOWN)  # a fresh rank is in a cell of its own
            return self._end("", now)
        self.broken.clear()
        self._forming = ()
        request = RebuildGroups(
            number=self._questions.new_number(),
            groups=(),
            group_count=0,
            fresh=ranks.ranks,
            initialises=True,
        )
        return self._reform(request, ranks)

    def _reform(self, request: RebuildGroups, ranks: RankSet) -> list[Action]:
        self._step = _Step.REFORM
        self._number = request.number
        then = partial(self._reformed, ranks)
        self._questions.ask("reform", request.number, ranks, until=self._until, then=then)
        return [SendToRanks(ranks, request)]

    def _looked(self, answers: Answers, now: float) -> list[Action]:
        looks = {rank: answer.look for rank, answer in looks_of(answers).items()}
        able = self._pool.ranks.in_state(RankState.IDLE)
        silent = able - RankSet.of(looks) - RankSet.of(self._joining)
        needs = self._forms_all or self._joining or self.broken
        if needs and (unheard := RankSet.of(set(silent) & set(self._silent.ranks))):
            return self._end_for_silence(unheard, now)
        if silent and needs:
            if now < self._until:
                return self._look(now)
            return self._end(f"{silent.describe()} did not report the process groups", now)
        self._forming, self.broken = groups_to_form(
            looks, able, self.broken, forms_all=self._forms_all or bool(self._joining)
        )
        if self._joining and not looks:
            self.broken.add(_UNKNOWN)  # the ranks that know them are in C code that holds the GIL
        # Torch names groups by a counter of each rank: the next group needs one name on all ranks.
        counts = {looks[rank].group_count for rank in able if rank in looks}
        if not self._forming and not self._joining and len(counts) < 2:
            return self._end("", now)
        request = RebuildGroups(
            number=self._questions.new_number(),
            groups=self._forming,
            group_count=max((look.group_count for look in looks.values()), default=0),
            fresh=tuple(sorted(self._joining)),
        )
        return self._reform(request, able)

    def _reformed(self, asked: RankSet, answers: Answers, now: float) -> list[Action]:
        if self._setback:
            return self._retry(self._setback, now)
        # Ranks that have come back from an old cell since then were not asked.
        alive = self._pool.ranks.in_state(RankState.IDLE)
        silent = RankSet.of(set(asked) & set(alive)) - RankSet.of(answers)
        if silent:
            self.broken.update(group.pg_id for group in self._forming)
            limit = f"{self._limit_s:g} s"
            possessive = silent.verb("its", "their")
            return self._end(
                f"{silent.describe()} did not form {possessive} groups in {limit}", now
            )
        if not self.broken:
            self._joining.clear()
        return self._end("", now)

    def _break_reform(self, setback: str, dead: tuple[Rank, ...], now: float) -> list[Action]:
        """Abort the forming of groups, so that ranks which wait for a lost rank answer.

        They answer with an error, which ends this attempt; then the rebuild is tried again.
        """
        self._setback = setback
        self.broken.update(group.pg_id for group in self._forming)
        others = self._pool.ranks.in_state(RankState.IDLE)
        if not others or now >= self._until:
            return []
        request = AbortOperations(
            number=self._questions.new_number(),
            run_id="",
            phase="arm",
            reason="death" if dead else "error",
            text=setback,
            pg_ids=tuple(group.pg_id for group in self._forming),
            ranks=dead,
            reform=self._number,
        )
        return both_phases(others, request)

    def _retry(self, setback: str, now: float) -> list[Action]:
        if self._tries >= MAX_TRIES:
            return self._give_up(f"{setback}; tried {MAX_TRIES} times", now)
        self._tries += 1
        self._set_limit(now)
        self._settle(now)
        return []

    def _set_limit(self, now: float, starting: RankSet = NO_RANKS) -> None:
        """Set the limit of time of this attempt, or of the start of fresh ranks.

        An agent that has come just now loads torch first, perhaps from a cold file system: its
        ranks have as much time as at the start of a pool.
        """
        self._limit_s = self._settings.rebuild_timeout_s
        if self._pool.ranks.fresh_agents.intersection(self._pool.ranks.by_node(starting)):
            self._limit_s = max(self._limit_s, self._settings.start_timeout_s)
        self._until = now + self._limit_s

    def _give_up(self, failure: str, now: float) -> list[Action]:
        """End the rebuild with a failure, and kill ranks that are still starting."""
        late = self._pool.ranks.in_state(RankState.STARTING)
        kill: list[Action] = [
            SendToAgent(node, KillRanks(ranks=ranks))
            for node, ranks in self._pool.ranks.by_node(late).items()
        ]
        return [*kill, *self._end(failure, now)]

    def _end(self, failure: str, now: float) -> list[Action]:
        self._step = _Step.NONE
        self.failure = failure
        is_up = self._pool.phase is Phase.UP
        alive = self._pool.ranks.in_state(RankState.IDLE) if is_up else NO_RANKS
        return self._then(failure, RankSet.of(self._fresh.intersection(alive)), now)


def _lost_store(pool: PoolMachine) -> str:
    """Say what has become of the store: the process of one behind a cut perhaps runs on."""
    if 0 in pool.lost_agents:
        return "the store of the process groups was lost with node 0"
    return "the process of the store has ended"


def groups_to_form(
    looks: Mapping[Rank, RankLook],
    able: RankSet,
    broken: Iterable[str],
    *,
    forms_all: bool,
) -> tuple[tuple[GroupInfo, ...], set[str]]:
    """Return the groups to form now, and the ids of those that must wait for a member.

    A group is formed if it is broken, if its members disagree on the number of its operations, or,
    with ``forms_all``, in any case. Groups are in the order of their creation, so that a group
    comes after the one that it was made from.

    Args:
        looks: answers of ranks outside cells, and perhaps of some that do not leave theirs.
        able: ranks that can take part.
        broken: ids of groups.
        forms_all: form all groups, because a rank has to learn all of its groups.
    """
    wanted = set(broken)
    known: dict[str, GroupInfo] = {}
    counts: dict[str, set[int]] = {}
    for _, look in sorted(looks.items()):
        for group in look.groups:
            known.setdefault(group.pg_id, group)
            counts.setdefault(group.pg_id, set()).add(group.collective_seq_id)
    due = [
        msgspec.structs.replace(group, collective_seq_id=max(counts[pg_id]))
        for pg_id, group in known.items()
        if forms_all or pg_id in wanted or len(counts[pg_id]) > 1
    ]
    now = tuple(group for group in due if set(group.ranks) <= set(able))
    return now, {group.pg_id for group in due} - {group.pg_id for group in now}
