"""What could not be started, as a message.

Runs in: the agent's thread.
"""

import traceback

from nbddp.wire.limits import what_to_do
from nbddp.wire.messages import StartFailed
from nbddp.wire.parts import ErrorInfo


def start_failure(node: int, rank: int | None, error: Exception) -> StartFailed:
    """The store (``rank`` None) or a rank could not be started: ``error`` says why."""
    advice = what_to_do(error)
    return StartFailed(
        node=node,
        rank=rank,
        error=ErrorInfo(
            ename=type(error).__name__,
            evalue=f"{error}. Next: {advice}" if advice else str(error),
            traceback=traceback.format_exception(error),
        ),
    )
