"""Requests that each rank answers once: transfers and descriptions of values.

Runs in: the hub thread puts answers in; the thread that asks takes them out.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType

from nbddp.controller.recovery import RecoveryMachine
from nbddp.controller.state import (
    NotifyUser,
    Silence,
    awaited_text,
    silence_text,
    silent_steps,
)
from nbddp.errors import NbddpError, PoolBrokenError, TransferInterruptedError
from nbddp.wire.messages import (
    RankExited,
    RankRequest,
    ReleaseSegment,
    ValueDescribed,
    ValuePulled,
    ValuePushed,
)
from nbddp.wire.rank_set import Rank, RankSet, ranks_by

#: Seconds between checks of ranks that do not answer.
_PATIENCE_S = 2.0

Answer = ValuePulled | ValueDescribed | ValuePushed


class RequestRefusedError(NbddpError):
    """The pool does not take the request; no variable was changed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Transfer:
    """Collects the answers of ranks to one request.

    Args:
        request_id: names the request.
        ranks: the ranks that will answer.
        is_served: whether the hub thread, which puts answers in, is alive.
        look: called again and again while nothing comes; it may raise.
        needs_all: the user cannot leave out a rank.
    """

    def __init__(
        self,
        request_id: str,
        ranks: RankSet,
        is_served: Callable[[], bool],
        look: Callable[[set[Rank]], None] = lambda missing: None,
        *,
        needs_all: bool = False,
    ) -> None:
        self.needs_all = needs_all
        self.request_id = request_id
        self.ranks = ranks
        self._is_served = is_served
        self._look = look
        self._answers: queue.SimpleQueue[tuple[Answer, list[bytes]] | RankExited | NbddpError] = (
            queue.SimpleQueue()
        )
        self._lock = threading.Lock()  # between `put` and `close`: an answer is with one of them
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more answers."""
        return self._is_closed

    def put(self, answer: Answer, frames: list[bytes]) -> bool:
        """Add an answer that has come; False: it is closed. The hub thread calls this."""
        with self._lock:
            if not self._is_closed:
                self._answers.put((answer, frames))
            return not self._is_closed

    def close(self) -> list[Answer]:
        """Take no more answers; return those that were not taken out."""
        unread: list[Answer] = []
        with self._lock:
            self._is_closed = True
        with suppress(queue.Empty):
            while True:
                entry = self._answers.get_nowait()
                if isinstance(entry, tuple):
                    unread.append(entry[0])
        return unread

    def refuse(self, reason: str) -> None:
        """Note that the pool does not take the request. The hub thread calls this."""
        self._answers.put(RequestRefusedError(reason))

    def rank_exited(self, exited: RankExited) -> None:
        """Note that a rank will never answer. The hub thread calls this."""
        if exited.rank in self.ranks:
            self._answers.put(exited)

    def next(
        self, missing: set[Rank], until: Callable[[], bool] = lambda: False
    ) -> tuple[Answer, list[bytes]] | None:
        """Wait for the next answer, without a limit; a KeyboardInterrupt ends the wait.

        Args:
            missing: ranks that have not answered.
            until: the wait also ends when it returns True.

        Returns:
            An answer with its frames; None: ``until`` has ended the wait.

        Raises:
            PoolBrokenError: a rank whose answer is missing has exited, or the pool has ended.
            RequestRefusedError: the request was not sent.
            PoolBusyError: raised by ``look``.
        """
        began = time.monotonic()
        while True:
            is_served = self._is_served()
            try:
                # With a limit, so that an interrupt and the end of the hub are noticed.
                answer = self._answers.get(timeout=0.2 if is_served else 0.0)
            except queue.Empty:
                if is_served and until():
                    return None
                if is_served:
                    if time.monotonic() - began > _PATIENCE_S:
                        began = time.monotonic()
                        self._look(missing)
                    continue
                raise PoolBrokenError(
                    "the pool ended before the value was transferred; "
                    "no variable was changed. Next: %ddp restart, or %ddp start"
                ) from None
            if isinstance(answer, NbddpError):
                raise answer
            if isinstance(answer, tuple):
                return answer
            if answer.rank in missing:
                ended = "was lost with its node" if answer.was_lost else "exited"
                raise PoolBrokenError(
                    f"rank {answer.rank} {ended} before its value was transferred; no variable of "
                    "another rank was changed. Next: %ddp status shows whether a fresh process "
                    "has taken its place, and what to do"
                )


class WaitInterrupt(KeyboardInterrupt):
    """The user has ended the wait for ranks.

    Args:
        answered: ranks that had answered before.
        left: ranks that have ended their work for it, and their place in a cell.
        stuck: ranks that have not ended it.
        silences: the silent nodes of ranks that have not answered.
    """

    def __init__(
        self,
        answered: RankSet,
        left: Mapping[Rank, str],
        stuck: RankSet,
        silences: Sequence[Silence] = (),
    ) -> None:
        super().__init__()
        self.silences = silences
        self.answered = answered
        self.left = left
        self.stuck = stuck


class interrupt_as_error:  # noqa: N801 - used like a function, without contextlib's traceback line
    """Turns an interrupt within the block into an error of one line, which shows the progress.

    Args:
        what: the interrupted activity, for the text: ``pulling 'x'``.
        needs_all: the user cannot leave out a rank.

    Raises:
        TransferInterruptedError: instead of KeyboardInterrupt.
    """

    def __init__(self, what: str, *, needs_all: bool = False) -> None:
        self._what = what
        self._needs_all = needs_all

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, WaitInterrupt):
            raise TransferInterruptedError(
                f"{self._what} was interrupted{_how_far(error, needs_all=self._needs_all)}"
            ) from None
        if isinstance(error, KeyboardInterrupt):
            raise TransferInterruptedError(
                f"{self._what} was interrupted; no variable was changed"
            ) from None


def _how_far(stopped: WaitInterrupt, *, needs_all: bool) -> str:
    """``: rank 0 had answered, rank 1 was in cell [3], line 4. No variable was changed``."""
    by_place = ranks_by((place, rank) for rank, place in sorted(stopped.left.items()))
    had = f"{stopped.answered.describe()} had answered" if stopped.answered else ""
    parts = [had] if had else []
    for place, ranks in by_place.items():
        where = f"{ranks.verb('was', 'were')} in {place}" if place else "had not answered"
        parts.append(f"{ranks.describe()} {where}")
    steps = []
    silent = RankSet.of(rank for each in stopped.silences for rank in each.ranks)
    if silent:
        parts.append(silence_text(stopped.silences))
        them = silent.verb("it", "them")
        can_leave = stopped.answered and not needs_all
        steps = [f"-r {stopped.answered} leaves {them} out"] if can_leave else []
        steps = [", or ".join([*steps, silent_steps()])]
    elif stopped.stuck:
        one = len(stopped.stuck) == 1
        parts.append(f"{stopped.stuck.describe()} {'does' if one else 'do'} not react")
        steps = [
            f"%ddp stacks -r {stopped.stuck} shows where {'it is' if one else 'they are'}",
            f"%ddp restart -r {stopped.stuck} replaces {'it' if one else 'them'}",
        ]
    elif stopped.answered and any(by_place) and not needs_all:
        them = RankSet.of(stopped.left).verb("it", "them")
        steps = [f"-r {stopped.answered} leaves {them} out"]
    following = f". Next: {', '.join(steps)}" if steps else ""
    return f": {', '.join(parts)}. No variable was changed{following}"


class OpenTransfers:
    """The transfers that wait for answers; the hub thread calls all but `release`.

    Args:
        send: sends a request to ranks; any thread may call it.
        recovery: knows the silent nodes.
        tell: tells the user something.
    """

    def __init__(
        self,
        send: Callable[[RankSet, RankRequest], None],
        recovery: RecoveryMachine,
        tell: Callable[[NotifyUser], None],
    ) -> None:
        self._send = send
        self._recovery = recovery
        self._tell = tell
        self._by_id: dict[str, Transfer] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def open(self, transfer: Transfer) -> None:
        """Route the answers to a transfer from now on; the user is told if it may take long."""
        self._by_id[transfer.request_id] = transfer
        if self._recovery.active_run_id is not None:
            return  # ranks at their prompts are asked, with a limit
        silences = self._recovery.silent.among(transfer.ranks, time.monotonic())
        if silences:
            text = awaited_text(silences, transfer.ranks, needs_all=transfer.needs_all)
            self._tell(NotifyUser(None, text))

    def close(self, request_id: str) -> None:
        """Route no more answers to a transfer."""
        self._by_id.pop(request_id, None)

    def put(self, answer: Answer, frames: list[bytes]) -> None:
        """Hand an answer to its transfer; if that does not want it, its memory is released."""
        transfer = self._by_id.get(answer.request_id)
        if transfer is None or not transfer.put(answer, frames):
            self.release(answer)

    def rank_exited(self, exited: RankExited) -> None:
        """Tell all of them that a rank gives no more answers."""
        for transfer in list(self._by_id.values()):
            transfer.rank_exited(exited)

    def release(self, answer: Answer) -> None:
        """Release the shared memory of a pull that was interrupted or has failed."""
        value = answer.value if isinstance(answer, ValuePulled) else None
        if value is not None and value.segment >= 0:
            self._send(RankSet((answer.rank,)), ReleaseSegment(segment=value.segment))
