"""Decides which ranks get fresh processes: those that exited, or that ``%ddp restart -r R`` names.

Runs in: the hub thread. Pure; a part of `nbddp.controller.recovery.machine`, which rebuilds the
pool when the processes have ended. Other ranks keep their processes.

    RestartRanksRequested --roll call--> the agent of each node --all answer--> KillRanks
                                                               '--one does not--> refused
"""

from collections.abc import Callable
from functools import partial

from nbddp.controller.recovery.pending_answers import Answers, PendingAnswers
from nbddp.controller.recovery.silence import SilentRanks
from nbddp.controller.state import (
    Action,
    Config,
    Phase,
    PoolMachine,
    PoolSnapshot,
    RanksRestarted,
    RankState,
    RestartRanksRequested,
    RestartWithdrawn,
    SendToAgent,
    idle_exit_notices,
    silent_since_text,
)
from nbddp.settings import Settings
from nbddp.wire.messages import DumpStack, KillRanks
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet


class RankRestarts:
    """Ranks whose processes have to end, and requests that wait for fresh ones.

    Args:
        pool: the pool of these ranks.
        questions: to ranks.
        settings: limits.
        silent: the ranks of which nothing is heard.
        snapshot: returns the state of the pool.
    """

    def __init__(
        self,
        pool: PoolMachine,
        questions: PendingAnswers,
        settings: Settings,
        silent: SilentRanks,
        snapshot: Callable[[], PoolSnapshot],
    ) -> None:
        self._pool = pool
        self._questions = questions
        self._snapshot = snapshot
        #: Called when the processes of a request begin to end.
        self.begun: Callable[[], None] = lambda: None
        self._silent = silent
        self._settings = settings
        self.wanted: set[Rank] = set()  #: ranks to replace, independent of the configuration
        self._called: list[RestartRanksRequested] = []  #: wait for the answers of all nodes
        self._requests: list[RestartRanksRequested] = []
        self._killing: set[Rank] = set()
        self._until: float | None = None

    @property
    def is_killing(self) -> bool:
        """True while processes are being ended."""
        return bool(self._killing)

    @property
    def is_asked(self) -> bool:
        """True while a request waits for fresh ranks."""
        return bool(self._requests)

    def next_deadline(self) -> float | None:
        """The time at which `tick` has something to do."""
        return self._until

    def start(self, requested: RestartRanksRequested, now: float) -> list[Action]:
        """End the processes of these ranks, or answer why that is not possible.

        An agent that was killed is silent for seconds before that is noticed. Fresh ranks could
        form no groups with its ranks, so each node has to answer before a process ends.
        """
        if refused := self._refused(requested, now):
            return [refused]
        asked = self._one_on_each_node()
        if len(asked) < 2:  # a node that does not answer ends no rank either
            return self._begin(requested, now)
        self._called.append(requested)
        number = self._questions.new_number()
        until = now + self._settings.rebuild_timeout_s
        then = partial(self._answered, requested, asked)
        self._questions.ask("peek", number, asked, until=until, then=then)
        return [
            SendToAgent(node, DumpStack(number=number, ranks=ranks, stack=False))
            for node, ranks in self._pool.ranks.by_node(asked).items()
        ]

    def _one_on_each_node(self) -> RankSet:
        alive = self._pool.ranks.in_state(RankState.IDLE, RankState.BUSY)
        return RankSet.of(ranks[0] for ranks in self._pool.ranks.by_node(alive).values())

    def _answered(
        self, requested: RestartRanksRequested, asked: RankSet, answers: Answers, now: float
    ) -> list[Action]:
        """Take the answers of the nodes."""
        if requested not in self._called:
            return []  # it was refused meanwhile
        self._called.remove(requested)
        if refused := self._refused(requested, now):
            return [refused]
        alive = self._pool.ranks.in_state(RankState.IDLE, RankState.BUSY, among=asked)
        if missing := alive - RankSet.of(answers):
            nodes = tuple(self._pool.ranks.by_node(missing))
            return [RanksRestarted(requested.number, NO_RANKS, unanswered=nodes)]
        return self._begin(requested, now)

    def withdraw(self, withdrawn: RestartWithdrawn) -> list[Action]:
        """Forget a request, if no process has begun to end for it."""
        called = [each for each in self._called if each.number == withdrawn.request]
        self._called = [each for each in self._called if each not in called]
        return [RanksRestarted(withdrawn.number, NO_RANKS, is_withdrawn=bool(called))]

    def _begin(self, requested: RestartRanksRequested, now: float) -> list[Action]:
        self._requests.append(requested)
        self.wanted |= set(requested.ranks)
        self.begun()
        living = RankSet.of(
            rank for rank in requested.ranks if self._pool.ranks[rank].state is not RankState.EXITED
        )
        if not living:
            return []
        self._killing |= set(living)
        self._pool.ranks.mark_for_restart(living)
        self._until = now + self._settings.rebuild_timeout_s
        return [
            SendToAgent(node, KillRanks(ranks=ranks))
            for node, ranks in self._pool.ranks.by_node(living).items()
        ]

    def _refused(self, requested: RestartRanksRequested, now: float) -> RanksRestarted | None:
        reason = self._refusal(requested.ranks)
        if reason:
            return RanksRestarted(requested.number, NO_RANKS, reason)
        if self._silent.ranks:  # they would have to form groups with the fresh ones
            return self._refused_for_silence(requested, now)
        if obstacle := self._snapshot().obstacle(requested.ranks):
            return RanksRestarted(requested.number, NO_RANKS, obstacle=obstacle)
        return None

    def _refused_for_silence(
        self, requested: RestartRanksRequested, now: float, *, has_begun: bool = False
    ) -> RanksRestarted:
        silent = self._silent.among(self._silent.ranks, now)
        failure, number = silent_since_text(silent), requested.number
        return RanksRestarted(number, NO_RANKS, failure, silent, has_begun=has_begun)

    def nodes_silent(self, now: float) -> list[Action]:
        """Refuse all requests when a node becomes silent: no end of a rank is reported there."""
        if not (self._called or self._requests) or not self._silent.ranks:
            return []
        called, begun, self._called, self._requests = self._called, self._requests, [], []
        self.wanted.clear()
        self._killing.clear()
        self._until = None
        return [
            *(self._refused_for_silence(each, now) for each in called),
            *(self._refused_for_silence(each, now, has_begun=True) for each in begun),
        ]

    def _refusal(self, ranks: RankSet) -> str:
        if self._pool.spec.plain:
            return "a fresh rank cannot join process groups that are plain (%ddp start --plain)"
        if self._pool.phase is not Phase.UP:
            return f"the pool is not up (it is {self._pool.phase.name.lower()})"
        lost = sorted(
            {self._pool.ranks[rank].node for rank in ranks} & self._pool.lost_agents.keys()
        )
        if lost:
            return f"node {lost[0]} is lost"
        return self._pool.ranks.stopped_agent_reason(ranks)

    def rank_exited(self, rank: Rank) -> bool:
        """Take the exit of a rank; returns whether it was requested."""
        was_wanted = rank in self._killing
        self._killing.discard(rank)
        if not self._killing:
            self._until = None
        return was_wanted

    def rebuilt(
        self, fresh: RankSet, failure: str, now: float = 0.0, waiting: RankSet | None = None
    ) -> list[Action]:
        """Answer all requests after a rebuild, which may have failed.

        Args:
            fresh: ranks that it has replaced, and that are ready.
            failure: why it failed; empty: it did not.
            now: monotonic time in seconds.
            waiting: ranks whose old processes have ended, and that get their groups when silent
                nodes are heard; None: it waits for no node.
        """
        requests, self._requests = self._requests, []
        self.wanted.clear()
        if waiting is None:
            return [RanksRestarted(request.number, fresh, failure) for request in requests]
        silent = self._silent.among(self._silent.ranks, now)
        return [
            RanksRestarted(request.number, fresh, failure, silent, has_begun=True, ended=waiting)
            for request in requests
        ]

    def cancel(self, reason: str) -> list[Action]:
        """Refuse all requests, because all ranks end or some did not end in time."""
        self._killing.clear()
        self._until = None
        self._requests, self._called = [*self._called, *self._requests], []
        return self.rebuilt(NO_RANKS, reason)

    def tick(self, now: float) -> list[Action]:
        """Give up on ranks that did not end in time."""
        if self._until is None or now < self._until:
            return []
        late = RankSet.of(self._killing)
        limit = f"{self._settings.rebuild_timeout_s:g} s"
        return self.cancel(f"{late.describe()} did not end within {limit}")


# --- ranks that exited by themselves -------------------------------------------------------------


#: Ranks that exit between cells are replaced at most this often; after that, something is wrong
#: with the machine.
MAX_IDLE_REBUILDS = 3
TOO_OFTEN = "ranks exit repeatedly between cells"


class ExitedRanks:
    """Ranks that have exited, and whether they are replaced."""

    def __init__(
        self, pool: PoolMachine, restarts: RankRestarts, config: Callable[[], Config]
    ) -> None:
        self._pool = pool
        self._restarts = restarts
        self._config = config
        self._given_up: set[Rank] = set()  #: ranks that could not be replaced
        self._exits: dict[Rank, str] = {}  #: exits between cells, for the user
        self._idle_rebuilds = 0

    def is_replaced(self, rank: Rank) -> bool:
        """Return whether a fresh process replaces this rank when it has exited."""
        if rank in self._restarts.wanted:
            return True
        return self._config().on_death == "respawn" and rank not in self._given_up

    def dead(self) -> RankSet:
        """Return the exited ranks that are to be replaced."""
        return RankSet.of(
            rank
            for rank in self._pool.ranks.in_state(RankState.EXITED)
            if self.is_replaced(rank) and self._pool.ranks[rank].node not in self._pool.lost_agents
        )

    def begin_cell(self) -> None:
        """Begin a cell, which resets the count of rebuilds between cells."""
        self._idle_rebuilds = 0

    def note_exit(self, rank: Rank, exit_text: str) -> None:
        """Note an exit between cells, to report it to the user."""
        self._exits.setdefault(rank, exit_text)

    def is_too_often(self) -> bool:
        """Count an exit between cells; returns whether the dead ranks are given up now."""
        self._idle_rebuilds += 1
        is_too_often = self._idle_rebuilds > MAX_IDLE_REBUILDS
        if is_too_often:
            self._given_up |= set(self.dead())
        return is_too_often

    def rebuilt(self, failure: str) -> None:
        """Take the end of a rebuild: ranks that it could not replace are given up."""
        if failure:
            late = self._pool.ranks.in_state(RankState.STARTING)
            self._given_up |= {*self.dead(), *late}
        else:
            self._given_up &= set(self._pool.ranks.in_state(RankState.EXITED))

    def report_exits(self, fresh: RankSet, failure: str) -> list[Action]:
        """Return the report on exits between cells, once."""
        noted, self._exits = self._exits, {}
        nodes, lost = self._pool.ranks, self._pool.lost_agents
        # The loss of a node is told for all of its ranks, which nothing has replaced.
        exits = {rank: text for rank, text in noted.items() if nodes[rank].node not in lost}
        return [*idle_exit_notices(exits, RankSet.of(self._pool.ranks) - fresh, failure)]

    def forget(self) -> None:
        """Forget all exits, because all ranks end."""
        self._given_up.clear()
        self._exits.clear()
