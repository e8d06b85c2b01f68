"""Ends operations that are blocked, in two phases.

Runs in: the rank process, I/O thread, while the main thread is blocked in C++.

``arm``: what ends from now on in the chosen groups raises the reason, not Gloo's "connection closed
by peer". ``fire``: end it. The hub lets all ranks arm before the first one fires: a shut socket is
seen by the peers within a millisecond, and must not look like an error of theirs.

Nothing of the user's is touched: the groups are marked as broken and are made again between cells
(`rebuild`).
"""

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
from nbddp.wire.messages import Free, Freed

_HEADLINES = {
    "deadlock": "freed by nbddp: this can never complete",
    "death": "freed by nbddp: a rank of the group has exited",
    "error": "freed by nbddp: another rank has failed",
    "mismatch": "freed by nbddp: the ranks disagree",
    "interrupt": "freed by nbddp: interrupted",
}


class OperationAbort:
    """Answers `Free` requests of one rank."""

    def __init__(
        self,
        creator: GroupFactory,
        recorder: Recorder,
        store_port: int,
        is_reforming: Callable[[], bool],
    ) -> None:
        self.is_reforming = is_reforming  #: groups are made again: nothing of that is recorded
        self._creator = creator
        self._recorder = recorder
        self._store_port = store_port
        #: The errors raised on our account in this cell, to tell them from the user's own.
        self.was_fired = False
        #: Whether an interrupt was raised in the code of the cell.
        self.was_interrupted: Callable[[], bool] = lambda: False

    def begin_cell(self) -> None:
        """Nothing was freed in the cell that begins; groups that are broken stay so."""
        self.was_fired = False
        self._creator.patience.ended = None

    def handle(self, request: Free) -> Freed:
        """Arm or fire."""
        self._creator.patience.end_attempt(request.reform)
        chosen = self._choose(request)
        blocked_outside = self._is_blocked_outside(request)
        stuck = ""
        if request.phase == "arm":
            self._recorder.sweep()  # what has ended by now has ended by itself
            reason = _reason(request)
            for group in chosen:
                group.book.ended = reason
                group.book.is_broken = True
            if blocked_outside or self.is_reforming():
                self._creator.patience.ended = reason
        else:
            self.was_fired = self.was_fired or bool(chosen) or blocked_outside
            sockets.settle(fd for group in chosen for fd in group.fds)
            for group in chosen:
                stuck = _end(group) or stuck
            if blocked_outside or self.is_reforming():
                self._end_creation()
            if not (chosen or blocked_outside) and self.was_interrupted():
                stuck = self._goes_on()
        pg_ids = tuple(group.book.info.pg_id for group in chosen)
        return Freed(
            number=request.number,
            rank=self._recorder.rank,
            phase=request.phase,
            pg_ids=pg_ids or (("",) if blocked_outside else ()),
            stuck=stuck,
        )

    def _choose(self, request: Free) -> list[TracedGroup]:
        groups = list(self._creator.groups.values())
        if request.phase == "fire":
            return [group for group in groups if group.book.ended is not None]
        if request.pg_ids or request.ranks:
            dead = set(request.ranks)
            return [
                group
                for group in groups
                if group.book.info.pg_id in request.pg_ids or dead & set(group.book.info.ranks)
            ]
        blocked = self._blocked_groups()
        return [group for group in groups if group.book.info.pg_id in blocked]

    def _blocked_groups(self) -> set[str]:
        """Groups with an operation that is waited for, or open while C++ waits."""
        return {operation.pg_id for operation in list(self._recorder.open.values())} | {
            operation.pg_id
            for _, record, _ in self._own_waits()
            if (operation := self._recorder.operation(record)) is not None
        }

    def _own_waits(self) -> tuple[tuple[int, int, int], ...]:
        return self._recorder.waits()

    def _is_blocked_outside(self, request: Free) -> bool:
        """A thread waits for the store, or for others to make a group with it."""
        if request.phase == "fire":
            return self._creator.patience.ended is not None
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

    def _goes_on(self) -> str:
        """The main thread runs Python, which has seen the interrupt."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        stack = self._recorder.sites.stack(frame)
        site = next((each for each in stack if each.cell > 0), None)
        at = f", at cell [{site.cell}], line {site.line}" if site is not None else ""
        return f"in Python code that goes on after an interrupt{at}"

    def _end_creation(self) -> None:
        """Members that died while C++ connected them: end its sockets, and the store's client."""
        before = self._creator.connecting
        if before is None:
            return  # it waits patiently, and looks at `ended` by itself
        found = sockets.tcp_sockets()
        sockets.shut(found - before, socket.SHUT_RDWR)
        sockets.shut(sockets.connected_to(found, self._store_port), socket.SHUT_RDWR)
        sockets.dial_in_place_of_members(found - before, self._creator.world_size)
        for group in self._creator.groups.values():
            group.book.is_broken = True  # their store is gone


def _end(group: TracedGroup) -> str:
    """End what is blocked in a group; gives what could not be ended."""
    sockets.shut(group.fds)
    group.book.cut_at = time.monotonic()
    if not group.is_careful:
        futures.end_soon(group.book)
    for backend in torch_private.nccl_backends(group.inner):
        backend.abort()
    return ""


def _reason(request: Free) -> Callable[[], BaseException]:
    if request.reason == "interrupt":
        return KeyboardInterrupt
    text = request.text or _HEADLINES[request.reason]
    return lambda: CollectiveAbortedError(text)
