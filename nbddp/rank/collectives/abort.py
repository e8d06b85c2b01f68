"""Aborts blocked operations of this rank, in two phases.

Runs in: the rank process, I/O thread, while the main thread is blocked in C++.

``arm``: operations of the chosen groups that end from now on raise the reason, not Gloo's
"connection closed by peer". ``fire``: the operations are ended. The hub lets all ranks arm before
the first one fires, because peers see a shut socket within a millisecond, and must not take it for
an error of their own.

No object of the user is changed: the groups are marked as broken, and are rebuilt between cells
(`rebuild`).
"""

import math
import socket
import sys
import threading
import time
from collections.abc import Callable

from nbddp.errors import CollectiveAbortedError
from nbddp.rank import torch_private
from nbddp.rank.collectives.gloo import futures, sockets
from nbddp.rank.collectives.group import TracedGroup
from nbddp.rank.collectives.group_creation import GroupFactory
from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.wire.messages import AbortOperations, OperationsAborted

_HEADLINES = {
    "deadlock": "freed by nbddp: this can never complete",
    "death": "freed by nbddp: a rank of the group has exited",
    "error": "freed by nbddp: another rank has failed",
    "mismatch": "freed by nbddp: the ranks disagree",
    "interrupt": "freed by nbddp: interrupted",
}


#: An `except` of the user's code may go on to operations.
_LATER = "Until the cell ends, each later operation of the group raises this error, too."


class AbortHandler:
    """Answers `AbortOperations` requests of one rank."""

    def __init__(
        self,
        factory: GroupFactory,
        recorder: Recorder,
        store_port: int,
        is_rebuilding: Callable[[], bool],
    ) -> None:
        self.is_rebuilding = is_rebuilding  #: groups are being rebuilt, which is not recorded
        self._factory = factory
        self._recorder = recorder
        self._store_port = store_port
        #: The time at which operations were aborted in this cell, which distinguishes their errors
        #: from the user's.
        self.fired_at = math.inf
        #: Returns whether an interrupt was raised in the code of the cell.
        self.was_interrupted: Callable[[], bool] = lambda: False

    def begin_cell(self) -> None:
        """Forget aborts of earlier cells; broken groups stay broken."""
        self.fired_at = math.inf
        self._factory.store_wait.ended = None

    def handle(self, request: AbortOperations) -> OperationsAborted:
        """Arm or fire, as the request says."""
        self._factory.store_wait.end_attempt(request.reform)
        chosen = self._chosen_groups(request)
        blocked_outside = self._is_blocked_outside(request)
        stuck = ""
        if request.phase == "arm":
            self._recorder.sweep()  # operations that have ended by now ended by themselves
            reason = _reason(request)
            for group in chosen:
                group.counters.ended = reason
                group.counters.is_broken = True
            if blocked_outside or self.is_rebuilding():
                self._factory.store_wait.ended = reason
        else:
            if chosen or blocked_outside:
                self.fired_at = min(self.fired_at, time.monotonic())
            sockets.settle(fd for group in chosen for fd in group.fds)
            for group in chosen:
                _abort_group(group)
            if blocked_outside or self.is_rebuilding():
                self._end_creation()
            if not (chosen or blocked_outside) and self.was_interrupted():
                stuck = self._running_code()
        pg_ids = tuple(group.counters.info.pg_id for group in chosen)
        return OperationsAborted(
            number=request.number,
            rank=self._recorder.rank,
            phase=request.phase,
            pg_ids=pg_ids or (("",) if blocked_outside else ()),
            stuck=stuck,
        )

    def _chosen_groups(self, request: AbortOperations) -> list[TracedGroup]:
        groups = list(self._factory.groups.values())
        if request.phase == "fire":
            return [group for group in groups if group.counters.ended is not None]
        if request.pg_ids or request.ranks:
            dead = set(request.ranks)
            return [
                group
                for group in groups
                if group.counters.info.pg_id in request.pg_ids or dead & set(group.counters.ranks)
            ]
        blocked = self._blocked_groups()
        return [group for group in groups if group.counters.info.pg_id in blocked]

    def _blocked_groups(self) -> set[str]:
        """Return the groups with an operation that a thread waits for, or that is open."""
        return {operation.pg_id for operation in list(self._recorder.open.values())} | {
            operation.pg_id
            for _, record, _ in self._own_waits()
            if (operation := self._recorder.operation(record)) is not None
        }

    def _own_waits(self) -> tuple[tuple[int, int, int], ...]:
        return self._recorder.waits()

    def _is_blocked_outside(self, request: AbortOperations) -> bool:
        """Return whether a thread waits for the store, or for members of a group to be made."""
        if request.phase == "fire":
            return self._factory.store_wait.ended is not None
        for _, record, _ in self._own_waits():
            operation = self._recorder.operation(record)
            if operation is None or operation.signature.kind not in ("creation", "store"):
                continue
            if not (request.pg_ids or request.ranks):
                return True
            if operation.pg_id in request.pg_ids or operation.signature.kind == "store":
                return True
            if set(map(str, request.ranks)) & set(operation.signature.keys):
                return True
        return False

    def _running_code(self) -> str:
        """Describe the Python code that the main thread runs, which has got the interrupt."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        stack = self._recorder.sites.stack(frame)
        site = next((line for line in stack if line.cell > 0), None)
        place = f", at cell [{site.cell}], line {site.line}" if site is not None else ""
        return f"in Python code that ignores interrupts{place}"

    def _end_creation(self) -> None:
        """End C++'s wait for members that died while it connected them, and the store's client."""
        before = self._factory.connecting
        if before is None:
            return  # the rank waits in Python, and checks `ended` by itself
        open_sockets = sockets.tcp_sockets()
        sockets.shut(open_sockets - before, socket.SHUT_RDWR)
        sockets.shut(sockets.connected_to(open_sockets, self._store_port), socket.SHUT_RDWR)
        sockets.connect_for_members(open_sockets - before, self._factory.world_size)
        for group in self._factory.groups.values():
            group.counters.is_broken = True  # the connection to their store is closed


def _abort_group(group: TracedGroup) -> None:
    """Abort the blocked operations of a group."""
    sockets.shut(group.fds)
    group.counters.cut_at = time.monotonic()
    if not group.is_careful:
        futures.end_soon(group.counters)
    for backend in torch_private.nccl_backends(group.inner):
        backend.abort()


def _reason(request: AbortOperations) -> Callable[[], BaseException]:
    if request.reason == "interrupt":
        return KeyboardInterrupt
    text = f"{request.text or _HEADLINES[request.reason]}\n{_LATER}"
    return lambda: CollectiveAbortedError(text)
