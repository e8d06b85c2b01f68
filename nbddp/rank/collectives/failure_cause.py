"""The cause of a failed operation: its arguments, an abort of its group, or a lost peer.

Runs in: the rank process, any thread.
"""

from nbddp.errors import CollectiveAbortedError, CollectiveFailedError
from nbddp.rank.collectives.recording.group_counters import GroupCounters

#: Texts of Gloo's errors when the other end is gone.
_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")


def failure(counters: GroupCounters, error: BaseException) -> BaseException:
    """Return the exception to raise for ``error`` of an operation, and mark its group as broken.

    Returns:
        The reason of the abort, if the group was aborted.
    """
    counters.is_broken = True
    ended = counters.ended
    if ended is not None:
        return ended()
    return lost_peer_error(error) or error


def was_cut_off(counters: GroupCounters, error: BaseException) -> bool:
    """Return whether an operation failed because of other ranks, and not of its arguments.

    For example, a buffer that torch leaves changed when it does not support an operation is torch's
    own behaviour.
    """
    is_ours = counters.ended is not None or isinstance(error, CollectiveAbortedError)
    return is_ours or lost_peer_error(error) is not None


def lost_peer_error(error: BaseException) -> CollectiveFailedError | None:
    """Return the exception to raise if an error of torch says that another member is gone."""
    text = str(error)
    if not any(words in text for words in _LOST):
        return None
    return CollectiveFailedError(f"the connection to another member of the group was lost\n{text}")
