"""The commands that wait until the pool is repaired, in order.

Runs in: the hub thread.
"""

import queue
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from nbddp.controller.recovery import RecoveryMachine
from nbddp.controller.state import NotifyUser
from nbddp.errors import CellInterruptedError
from nbddp.system.process_tree import is_ending
from nbddp.wire.rank_set import NO_RANKS, RankSet

#: A cell waits this long for ranks that are still in an old cell, or whose end is not reported yet.
_LATE_S = 2.0
#: The same, from when the node has got the interrupt; for the way there it waits at most this long.
_ON_ITS_WAY_S = 40.0
#: A cell that waits for longer waits for a repair, and says so.
_TELL_AFTER_S = 2.5
_STOP = "The stop button ends the wait; the cell is not run then"
_WAITS = f"this cell waits until the process groups are formed again. {_STOP}"


@dataclass(frozen=True)
class Refusal:
    """Why a cell did not begin."""

    reason: str
    is_withdrawn: bool = False  #: the user has ended the wait


_WITHDRAWN = Refusal("the wait for its ranks was interrupted", is_withdrawn=True)


class _Hub(Protocol):
    """The part of the hub thread that is needed here."""

    @property
    def is_alive(self) -> bool:
        """Whether it serves."""

    def do(self, action: NotifyUser) -> object:
        """Show the user a notice."""


class _Waits(Protocol):
    """The part of the waiting commands that is needed here."""

    @property
    def reason(self) -> str:
        """The event that they wait for."""

    @property
    def limit_s(self) -> float:
        """The longest time that a cell waits."""


def await_begin(
    answer: "queue.SimpleQueue[Refusal | None]",
    hub: _Hub,
    give_up: Callable[[Refusal], object],
    is_interrupted: Callable[[], bool],
    waits: _Waits,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Refusal | None] | None:
    """Wait until the hub thread has begun or refused a cell.

    Args:
        answer: gets the refusal, or None.
        hub: the hub thread.
        give_up: asks it to refuse the cell for this reason, unless it has begun.
        is_interrupted: whether the user has pressed the stop button.
        waits: says what the cell waits for, and when it is given up.
        clock: seconds.

    Returns:
        The answer; None: the hub has ended.
    """
    began, has_told, was_stopped = clock(), False, False
    while hub.is_alive:
        try:
            with suppress(queue.Empty):
                return (answer.get(timeout=0.2),)
        except KeyboardInterrupt:
            was_stopped = True
        waited_s = clock() - began
        if was_stopped or is_interrupted():
            give_up(_WITHDRAWN)
        elif waited_s > waits.limit_s:
            give_up(Refusal("fresh ranks are still taking their places"))
        elif waited_s > _TELL_AFTER_S and not has_told:
            has_told = True
            hub.do(NotifyUser(None, waits.reason))
    return None


def check_not_withdrawn(refusal: Refusal, cell: str) -> None:
    """Raise if the user has ended the wait of a cell.

    Args:
        refusal: why the cell did not begin.
        cell: its name.

    Raises:
        CellInterruptedError: the cell was not run.
    """
    if refusal.is_withdrawn:
        raise CellInterruptedError(
            f"{cell} was not run: it waited until all of its ranks were ready, and was "
            "interrupted. Next: run it again, which waits for them"
        )


class WaitingCommands:
    """Calls commands when the pool is whole.

    Args:
        recovery: repairs the pool.
        sees_processes: the ranks are processes of this machine.
    """

    def __init__(self, recovery: RecoveryMachine, *, sees_processes: bool) -> None:
        self._recovery = recovery
        self._machine = recovery.pool
        self._sees_processes = sees_processes
        self._waiting: list[Callable[[], object]] = []
        #: Ranks that are still in an old cell, and the end of the wait for them and for ranks that
        #: have just died.
        self._late = RankSet()
        self._settles_until = 0.0
        self._way_ends_at = 0.0  #: until then it waits for interrupts that are on their way
        self.reason = _WAITS  #: what the commands wait for; other threads read it
        self.limit_s = recovery.settings.start_timeout_s

    def when_whole(self, command: Callable[[], object]) -> None:
        """Call ``command`` now, or after the waiting ones when the pool is repaired."""
        if self._waiting or not self._is_whole():
            self._waiting.append(command)
        else:
            command()

    def when_settled(self, ranks: RankSet, command: Callable[[], object]) -> None:
        """The same, but first wait for ranks that are in an old cell, or have just died.

        Ranks of silent nodes are not waited for: they leave the cell when they are heard again.
        Ranks of nodes that are behind get more time: the interrupt is on its way.
        """
        late = self._machine.late(ranks) - self._recovery.silent.ranks
        if late or self._ending():
            now = time.monotonic()
            self._late = RankSet.of({*self._late, *late})
            self._settles_until = now + _LATE_S
            self._way_ends_at = now + _ON_ITS_WAY_S
        self.when_whole(command)

    def remove(self, command: Callable[[], object]) -> bool:
        """Remove a command; False: it does not wait."""
        if command not in self._waiting:
            return False
        self._waiting.remove(command)
        return True

    def call_due(self) -> None:
        """Call those that may be called now."""
        while self._waiting and self._is_whole():
            self._waiting.pop(0)()

    def _ending(self) -> RankSet:
        """Idle ranks whose processes are about to end, as the system of this machine shows it."""
        return self._machine.ending(is_ending) if self._sees_processes else NO_RANKS

    def _wait_for_interrupts(self, now: float) -> None:
        """Wait for longer while interrupts are on their way to ranks that are in an old cell."""
        if not self._late:
            return
        silent = self._recovery.silent
        self._late -= silent.ranks
        on_way = RankSet.of(set(self._machine.late(self._late)).intersection(silent.behind))
        self.reason = _WAITS
        if on_way and now < self._way_ends_at:
            self._settles_until = now + _LATE_S
            self.reason = (
                f"this cell waits for {on_way.describe()}, perhaps still in an old cell: the "
                f"interrupt is on its way there. {_STOP}"
            )

    def _is_whole(self) -> bool:
        """Whether commands may be called; the wait for late ranks ends or goes on with it."""
        now = time.monotonic()
        self._wait_for_interrupts(now)
        if self._recovery.is_rebuilding:
            return False
        if now < self._settles_until:
            return not self._machine.late(self._late) and not self._ending()
        self._late, self.reason = RankSet(), _WAITS
        return True
