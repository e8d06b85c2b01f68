"""Makes the call of a stopped operation again: ``retry``.

Runs in: the rank process, in the thread that has stopped.

The new call is made inside the stopped one. Its operation stops, too, and is issued in place of the
other, which has no number yet, or gives it back. The result of the new call goes to the caller.
"""

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist

from nbddp.errors import CollectiveRefusedError
from nbddp.rank.collectives.repeated_calls import RepeatedCall
from nbddp.rank.collectives.work import Instead
from nbddp.wire.flight_recorder import Operation, Signature


@dataclass(eq=False)
class _Attempt:
    """A call that is made now."""

    peer: int  #: of the stopped message
    gives_source: bool  #: the stopped call is `dist.recv`, which returns the rank of its source
    withdraw: Callable[[], None]  #: uncounts the stopped operation
    has_come: bool = False  #: its operation stops in place of the other


class Retries:
    """The calls that this rank makes again, at most one in each thread."""

    def __init__(self) -> None:
        self._now = threading.local()

    def make(
        self,
        read: Callable[[], RepeatedCall],
        stopped: Operation,
        withdraw: Callable[[], None] | None,
    ) -> Instead | None:
        """Make a call in place of that of a stopped operation.

        Args:
            read: evaluates the function and its arguments.
            stopped: the operation.
            withdraw: uncounts it; None: it cannot be uncounted.

        Returns:
            The result in place of the stopped operation; None: nothing was done, and the user is
            told why.

        Raises:
            BaseException: the new operation raises it.
        """
        if withdraw is None:
            _tell("other machines have compared this operation. Next: continue raises the mismatch")
            return None
        attempt: _Attempt | None = None
        try:
            call = read()
            attempt = _Attempt(stopped.peer, call.replaced is dist.recv, withdraw)
            self._now.attempt = attempt
            result = call()
        except CollectiveRefusedError as error:
            if attempt is not None and attempt.has_come:
                raise
            _tell(str(error))
            return None
        except KeyboardInterrupt:  # the stop button
            raise
        except BaseException as error:
            if attempt is not None and attempt.has_come:
                raise  # as in any other line of the program
            _tell("".join(traceback.format_exception_only(error)).strip())
            return None
        finally:
            self._now.attempt = None
        if not attempt.has_come:
            _tell("the call issues no operation on this rank")
            return None
        return Instead(result if isinstance(result, dist.Work) else None)

    def come(self, signature: Signature, peer: int) -> None:
        """Note an operation before it stops: that of a repeated call takes the place of the other.

        Args:
            signature: of the operation.
            peer: the other end of a message.

        Raises:
            CollectiveRefusedError: the caller of the stopped operation would not know its source.
        """
        attempt: _Attempt | None = getattr(self._now, "attempt", None)
        if attempt is None:
            return
        is_other = signature.kind != "recv" or peer != attempt.peer or peer < 0
        if attempt.gives_source and is_other:
            raise CollectiveRefusedError(
                "recv returns the rank of its source, which the line gets as it was. Next: retry "
                "with the same source"
            )
        self._now.attempt = None
        attempt.has_come = True
        attempt.withdraw()


def _tell(reason: str) -> None:
    print(f"no retry: {reason}")  # noqa: T201 - output of the cell
