"""Requests that each rank answers once: values on their way, and what is told of them.

Runs in: the hub thread puts answers in; the thread that asks takes them out.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType

from nbddp.errors import NbddpError, PoolBrokenError, TransferInterruptedError
from nbddp.wire.messages import RankExited, ValueDescribed, ValuePulled, ValuePushed
from nbddp.wire.rank_set import Rank, RankSet

#: Ranks that do not answer are looked at this often.
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
        ranks: who will answer.
        is_served: whether anybody puts answers in.
        look: called again and again while nothing comes; it may raise.
    """

    def __init__(
        self,
        request_id: str,
        ranks: RankSet,
        is_served: Callable[[], bool],
        look: Callable[[set[Rank]], None] = lambda missing: None,
    ) -> None:
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
        """Whether nobody waits any longer."""
        return self._is_closed

    def put(self, answer: Answer, frames: list[bytes]) -> bool:
        """An answer has come; False: nobody waits for it. Called by the hub thread."""
        with self._lock:
            if not self._is_closed:
                self._answers.put((answer, frames))
            return not self._is_closed

    def close(self) -> list[Answer]:
        """Take no more answers; gives those that nobody has taken out."""
        left: list[Answer] = []
        with self._lock:
            self._is_closed = True
        with suppress(queue.Empty):
            while True:
                found = self._answers.get_nowait()
                if isinstance(found, tuple):
                    left.append(found[0])
        return left

    def refuse(self, reason: str) -> None:
        """The request will not be sent. Called by the hub thread."""
        self._answers.put(RequestRefusedError(reason))

    def rank_exited(self, exited: RankExited) -> None:
        """A rank will never answer. Called by the hub thread."""
        if exited.rank in self.ranks:
            self._answers.put(exited)

    def next(
        self, missing: set[Rank], until: Callable[[], bool] = lambda: False
    ) -> tuple[Answer, list[bytes]] | None:
        """Wait for the next answer, as long as it takes; a KeyboardInterrupt ends the wait.

        None: it has become true ``until`` when to wait.

        Raises:
            PoolBrokenError: a rank whose answer is missing has exited, or the pool has ended.
            RequestRefusedError: the request was not sent.
            PoolBusyError: what ``look`` raises.
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
                raise PoolBrokenError(
                    f"rank {answer.rank} exited before its value was transferred; "
                    "no variable was changed. Next: %ddp restart"
                )


class Stopped(KeyboardInterrupt):
    """The user has ended the wait for ranks.

    Args:
        answered: ranks that had answered by then.
        left: those that have ended what they did for it, and where in a cell they were.
        stuck: those that have not.
    """

    def __init__(self, answered: RankSet, left: Mapping[Rank, str], stuck: RankSet) -> None:
        super().__init__()
        self.answered = answered
        self.left = left
        self.stuck = stuck


class told_when_stopped:  # noqa: N801 - used as a function is; one would leave a line of contextlib
    """Within this block an interrupt is an error of one line, which says how far ``what`` was.

    Raises:
        TransferInterruptedError: instead of KeyboardInterrupt.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, Stopped):
            raise TransferInterruptedError(
                f"{self._what} was interrupted{_how_far(error)}"
            ) from None
        if isinstance(error, KeyboardInterrupt):
            raise TransferInterruptedError(
                f"{self._what} was interrupted; no variable was changed"
            ) from None


def _how_far(stopped: Stopped) -> str:
    """``: rank 0 had answered, rank 1 was in cell [3], line 4. No variable was changed``."""
    by_place: dict[str, list[Rank]] = {}
    for rank, place in sorted(stopped.left.items()):
        by_place.setdefault(place, []).append(rank)
    had = f"{stopped.answered.describe()} had answered" if stopped.answered else ""
    said = [had] if had else []
    for place, group in by_place.items():
        ranks = RankSet.of(group)
        where = f"{ranks.verb('was', 'were')} in {place}" if place else "had not answered"
        said.append(f"{ranks.describe()} {where}")
    steps = []
    if stopped.stuck:
        one = len(stopped.stuck) == 1
        said.append(f"{stopped.stuck.describe()} {'does' if one else 'do'} not react")
        steps = [
            f"%ddp stacks -r {stopped.stuck} shows where {'it is' if one else 'they are'}",
            f"%ddp restart -r {stopped.stuck} replaces {'it' if one else 'them'}",
        ]
    elif stopped.answered and any(by_place):
        them = RankSet.of(stopped.left).verb("it", "them")
        steps = [f"-r {stopped.answered} leaves {them} out"]
    following = f". Next: {', '.join(steps)}" if steps else ""
    return f": {', '.join(said)}. No variable was changed{following}"
