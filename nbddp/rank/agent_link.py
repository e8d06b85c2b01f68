"""The rank's connection to its agent, on a thread of its own.

Runs in: the rank process, thread ``nbddp-io``, the only owner of the socket. The thread keeps
answering while the main thread is blocked in C++, provided that this code has released the GIL.

    any thread --send--> queue --nbddp-io--> agent
    main thread <--on_request-- nbddp-io <-- agent
"""

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from nbddp.rank import streams
from nbddp.wire import codec
from nbddp.wire.channels import Frame, Poller, RankChannel, Waker
from nbddp.wire.messages import (
    ClearOutput,
    Display,
    FaultStruck,
    InputRequest,
    OutputDrained,
    RankEvent,
    RankRequest,
    Result,
    StartFailed,
)

_FLUSH_S = 0.02  #: longest time that an unfinished line stays in Python's buffer during a cell
_IDLE_FLUSH_S = 0.5

InOrderEvent = Display | Result | ClearOutput | InputRequest | FaultStruck | StartFailed


class Link:
    """Sends events, receives requests."""

    def __init__(
        self, address: str, identity: bytes, on_request: Callable[[RankRequest, list[bytes]], None]
    ) -> None:
        self._channel = RankChannel(address, identity)
        self._on_request = on_request
        self._waker = Waker()
        self._outgoing: deque[tuple[bytes, Sequence[Frame]]] = deque()
        self._sync_numbers = itertools.count(1)
        self._synced: dict[int, threading.Event] = {}
        self._pid = os.getpid()
        self._stopping = False
        #: While a cell runs, unfinished lines are flushed more often.
        self.is_busy = False
        #: Called by the thread again and again while a cell runs.
        self.while_busy: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._serve, name="nbddp-io", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def send(self, event: RankEvent, frames: Sequence[Frame] = ()) -> None:
        """Send an event after all earlier events; callable from any thread, does not wait.

        A forked child of the rank has no thread and no socket: its events are dropped.

        Raises:
            TypeError, OverflowError, RecursionError: the event has a value of the user, in a
                display for example, that a message cannot hold. It is raised here, in the user's
                cell, and not in the thread on which everything depends.
        """
        if os.getpid() == self._pid:
            payload = codec.encode(event)
            for frame in frames:
                codec.check_size(f"a buffer of {type(event).__name__}", memoryview(frame).nbytes)
            self._outgoing.append((payload, frames))
            self._waker.wake()

    def send_in_order(self, event: InOrderEvent) -> None:
        """Send an event after all text printed so far, and before all text printed later.

        Waits until the agent has it, because printed text goes to the agent through pipes, in which
        an event has no place. A call in ``nbddp-io`` itself does not wait.

        Raises:
            TypeError, OverflowError, RecursionError: as `send`.
        """
        if threading.current_thread() is self._thread:
            self.send(event)  # this thread would wait for itself
            return
        streams.flush_all()
        if os.getpid() != self._pid:
            return
        number = next(self._sync_numbers)
        done = self._synced[number] = threading.Event()
        try:
            self.send(msgspec.structs.replace(event, sync=number))
            while self._thread.is_alive() and not done.wait(timeout=1.0):
                pass
        finally:
            del self._synced[number]

    def close(self) -> None:
        """Send the events that wait, and end the thread."""
        self._stopping = True
        self._waker.wake()
        self._thread.join(timeout=1)

    def _serve(self) -> None:
        poller = Poller()
        poller.add(self._channel)
        poller.add(self._waker)
        while True:
            poller.wait(_FLUSH_S if self.is_busy else _IDLE_FLUSH_S)
            self._waker.clear()
            stopping = self._stopping
            while self._outgoing:
                payload, frames = self._outgoing.popleft()
                self._channel.send(payload, frames)
            for request, buffers in self._channel.receive():
                if isinstance(request, OutputDrained):
                    done = self._synced.get(request.number)
                    if done is not None:
                        done.set()
                else:
                    self._on_request(request, buffers)
            streams.flush_own()
            if self.is_busy:
                self.while_busy()
            if stopping:
                break
        self._channel.close(linger_s=0.5)
