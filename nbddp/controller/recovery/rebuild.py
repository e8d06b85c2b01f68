"""Makes a pool whole again: fresh ranks for those that exited, groups formed anew in place.

Runs in: the hub thread. Pure; a part of `nbddp.controller.recovery.machine`.

    dead ranks --StartRanks--> ready --Look--> groups of the survivors --Reform--> Reformed

The survivors know which groups there are: a fresh rank gets its own by `Reform`. Where all ranks
have exited at once there is nothing to keep, and the whole pool is started anew. Where they have
exited one after another, so that all that live are fresh, these make a default group as at first.
"""

from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING

from nbddp.controller.recovery.abort import both_phases
from nbddp.controller.recovery.group_plan import groups_to_form
from nbddp.controller.recovery.pending_answers import Answers, PendingAnswers, looks_of
from nbddp.controller.state.actions import Action, TellAgent, TellRanks
from nbddp.controller.state.pool_machine import PoolMachine
from nbddp.controller.state.rank_state import Phase, RankState
from nbddp.controller.state.stimuli import RespawnRequested, RestartRequested
from nbddp.settings import Settings
from nbddp.wire.messages import (
    Free,
    KillRanks,
    Look,
    Reform,
    Reformed,
)
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet

if TYPE_CHECKING:
    from nbddp.wire.flight_recorder.schema import GroupInfo

#: A mend begins anew so often when a rank exits or fails in it.
MAX_TRIES = 3
#: Ranks that exit together are replaced together.
_SETTLE_S = 0.05


class _Step(Enum):
    """Where a mend is."""

    NONE = auto()
    SETTLE = auto()  #: waits for more exits
    RESPAWN = auto()  #: waits for fresh ranks
    RESTART = auto()  #: waits for the whole pool
    LOOK = auto()
    REFORM = auto()


_NOBODY_KNOWS = "no rank is left that knows the process groups"
#: In the place of the ids of groups that nobody has told.
_UNKNOWN = "?"


class PoolRebuild:
    """One mend at a time, and what is left to be mended.

    Args:
        pool: whose ranks these are.
        questions: shared with the rest of the recovery.
        settings: limits.
        then: called at the end of a mend, with what went wrong and the ranks that are fresh.
    """

    def __init__(
        self,
        pool: PoolMachine,
        questions: PendingAnswers,
        settings: Settings,
        then: Callable[[str, RankSet, float], list[Action]],
    ) -> None:
        self._pool = pool
        self._questions = questions
        self._settings = settings
        self._then = then
        self.broken: set[str] = set()  #: ids of groups that must be re-formed
        self.failure = ""  #: what the last mend could not do
        self._step = _Step.NONE
        self._respawn = NO_RANKS  #: put fresh processes in the place of these
        self._forms_all = False
        self._joining: set[Rank] = set()  #: fresh ranks that do not have all their groups
        self._fresh: set[Rank] = set()  #: ranks that this mend has replaced
        self._tries = 0
        self._until = 0.0
        self._settle_until = 0.0
        self._number = 0
        self._setback = ""  #: why this attempt is to be repeated
        self._start_failures: dict[Rank, str] = {}
        self._forming: tuple[GroupInfo, ...] = ()

    @property
    def is_active(self) -> bool:
        """Whether a mend is going on."""
        return self._step is not _Step.NONE

    @property
    def joining(self) -> RankSet:
        """Fresh ranks that do not have all their groups: other members are still in a cell."""
        return RankSet.of(self._joining)

    @property
    def is_restarting(self) -> bool:
        """Whether it starts the whole pool anew."""
        return self._step is _Step.RESTART

    def next_deadline(self) -> float | None:
        """When `tick` has something to do."""
        if self._step is _Step.NONE:
            return None
        return self._settle_until if self._step is _Step.SETTLE else self._until

    # --- what it is told -----------------------------------------------------------------------

    def start(
        self, respawn: RankSet, now: float, *, settle: bool = False, forms_all: bool = False
    ) -> list[Action]:
        """Begin a mend.

        Args:
            respawn: put fresh processes in the place of these.
            now: the time.
            settle: wait a moment for more exits.
            forms_all: all groups, because any may be broken.
        """
        self.failure = ""
        self._tries = 1
        self._fresh = set()
        self._respawn = respawn
        self._forms_all = forms_all
        self._until = now + self._settings.mend_timeout_s
        if settle:
            self._settle(now)
            return []
        return self._begin(now)

    def rank_ready(self, now: float) -> list[Action]:
        """A rank is ready."""
        if self._step is not _Step.RESPAWN or self._pool.in_state(RankState.STARTING):
            return []
        return self._look(now)

    def pool_up(self, failure: str, now: float) -> list[Action]:
        """The whole pool has been started anew, or could not be."""
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

    def start_failed(self, rank: Rank, why: str) -> None:
        """A fresh rank could not start; its exit may be told later."""
        self._start_failures[rank] = why

    def rank_exited(self, rank: Rank, how: str, now: float, *, respawn: bool) -> list[Action]:
        """A rank has exited, or has no process to exit, perhaps while the pool is mended."""
        how = self._start_failures.pop(rank, f"exited ({how})")
        self._joining.discard(rank)
        self._fresh.discard(rank)
        if respawn:
            self._respawn = RankSet.of([*self._respawn, rank])
        setback = f"rank {rank} {how} while the pool was mended"
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
                # The others may wait for it.
                return self._break_reform(setback, (rank,), now)
            case _:
                self._questions.drop("look", self._number)
                return self._again(setback, now)

    def reformed(self, answer: Reformed, now: float) -> list[Action]:
        """A rank has answered; the question itself is settled by `PendingAnswers`."""
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
        """The whole pool starts anew: nothing is left to be mended."""
        self._questions.drop("look", self._number)
        self._questions.drop("reform", self._number)
        self._step = _Step.NONE
        self.broken.clear()
        self._joining.clear()
        self.failure = ""

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        if self._step is _Step.SETTLE and now >= self._settle_until:
            return self._begin(now)
        if self._step is _Step.RESPAWN and now >= self._until:
            late = self._pool.in_state(RankState.STARTING)
            verb = late.verb("was", "were")
            limit = f"{self._settings.mend_timeout_s:g} s"
            return self._give_up(f"{late.describe()} {verb} not ready within {limit}", now)
        return []

    # --- steps ---------------------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        self._step = _Step.SETTLE
        self._settle_until = now + _SETTLE_S

    def _begin(self, now: float) -> list[Action]:
        self._setback = ""
        exited = self._pool.in_state(RankState.EXITED)
        dead = RankSet.of(
            rank
            for rank in exited
            if rank in self._respawn and self._pool.ranks[rank].node not in self._pool.lost_agents
        )
        if dead and len(exited) == len(self._pool.ranks):
            if self._pool.lost_agents:
                return self._end(_NOBODY_KNOWS, now)
            self._step = _Step.RESTART
            return [*self._pool.handle(RestartRequested(), now)]
        if self._pool.store_is_lost:
            return self._end("the process of the store has ended, and groups need it", now)
        if not dead and not self._pool.in_state(RankState.STARTING):
            return self._look(now)
        self._step = _Step.RESPAWN
        self._fresh.update(dead)
        self._joining.update(dead)
        return [*self._pool.handle(RespawnRequested(dead), now)]

    def _look(self, now: float) -> list[Action]:
        """Ask the survivors which groups there are; also those that do not leave their cell."""
        asked = self._pool.in_state(RankState.IDLE, RankState.BUSY) - RankSet.of(self._joining)
        if not asked and self._joining:
            return self._begin_anew(now)
        self._step = _Step.LOOK
        self._number = self._questions.new_number()
        until = now + self._settings.look_timeout_s
        self._questions.ask("look", self._number, asked, until=until, then=self._looked)
        return [TellRanks(asked, Look(number=self._number))] if asked else []

    def _begin_anew(self, now: float) -> list[Action]:
        """Ranks were replaced one after another, and those that knew the groups are gone."""
        ranks = RankSet.of(self._pool.ranks)
        if self._pool.in_state(RankState.IDLE) != ranks:
            if not self._pool.in_state(RankState.BUSY):
                return self._end(_NOBODY_KNOWS, now)
            self.broken.add(_UNKNOWN)  # a fresh rank is in a cell of its own
            return self._end("", now)
        self.broken.clear()
        self._forming = ()
        request = Reform(
            number=self._questions.new_number(),
            groups=(),
            group_count=0,
            fresh=ranks.ranks,
            initialises=True,
        )
        return self._reform(request, ranks)

    def _reform(self, request: Reform, ranks: RankSet) -> list[Action]:
        self._step = _Step.REFORM
        self._number = request.number
        then = partial(self._reformed, ranks)
        self._questions.ask("reform", request.number, ranks, until=self._until, then=then)
        return [TellRanks(ranks, request)]

    def _looked(self, answers: Answers, now: float) -> list[Action]:
        looks = {rank: found.look for rank, found in looks_of(answers).items()}
        able = self._pool.in_state(RankState.IDLE)
        silent = able - RankSet.of(looks) - RankSet.of(self._joining)
        needs = self._forms_all or self._joining or self.broken
        if silent and needs:
            if now < self._until:
                return self._look(now)
            return self._end(f"{silent.describe()} did not tell which groups there are", now)
        self._forming, self.broken = groups_to_form(
            looks, able, self.broken, forms_all=self._forms_all or bool(self._joining)
        )
        if self._joining and not looks:
            self.broken.add(_UNKNOWN)  # who knows them is in C code that holds the GIL
        # Torch names groups by a counter of each rank: the next one must have one name everywhere.
        counts = {looks[rank].group_count for rank in able if rank in looks}
        if not self._forming and not self._joining and len(counts) < 2:
            return self._end("", now)
        request = Reform(
            number=self._questions.new_number(),
            groups=self._forming,
            group_count=max((look.group_count for look in looks.values()), default=0),
            fresh=tuple(sorted(self._joining)),
        )
        return self._reform(request, able)

    def _reformed(self, asked: RankSet, answers: Answers, now: float) -> list[Action]:
        if self._setback:
            return self._again(self._setback, now)
        # Not those that have come back from an old cell since then: nobody has asked them.
        alive = self._pool.in_state(RankState.IDLE)
        silent = RankSet.of(set(asked) & set(alive)) - RankSet.of(answers)
        if silent:
            self.broken.update(group.pg_id for group in self._forming)
            limit = f"{self._settings.mend_timeout_s:g} s"
            whose = silent.verb("its", "their")
            return self._end(f"{silent.describe()} did not form {whose} groups in {limit}", now)
        if not self.broken:
            self._joining.clear()
        return self._end("", now)

    def _break_reform(self, setback: str, dead: tuple[Rank, ...], now: float) -> list[Action]:
        """Ranks that wait for one that will not come answer with an error, then we try again."""
        self._setback = setback
        self.broken.update(group.pg_id for group in self._forming)
        others = self._pool.in_state(RankState.IDLE)
        if not others or now >= self._until:
            return []
        request = Free(
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

    def _again(self, setback: str, now: float) -> list[Action]:
        if self._tries >= MAX_TRIES:
            return self._give_up(f"{setback}; tried {MAX_TRIES} times", now)
        self._tries += 1
        self._until = now + self._settings.mend_timeout_s
        self._settle(now)
        return []

    def _give_up(self, failure: str, now: float) -> list[Action]:
        """Nobody waits any more for ranks that are still starting."""
        late = self._pool.in_state(RankState.STARTING)
        kill: list[Action] = [
            TellAgent(node, KillRanks(ranks=ranks))
            for node, ranks in self._pool.by_node(late).items()
        ]
        return [*kill, *self._end(failure, now)]

    def _end(self, failure: str, now: float) -> list[Action]:
        self._step = _Step.NONE
        self.failure = failure
        is_up = self._pool.phase is Phase.UP
        alive = self._pool.in_state(RankState.IDLE) if is_up else NO_RANKS
        return self._then(failure, RankSet.of(self._fresh.intersection(alive)), now)
