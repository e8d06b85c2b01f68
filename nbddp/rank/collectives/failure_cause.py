"""Why an operation has failed: by what was asked for, because its group was freed, or a peer lost.

Runs in: the rank process, any thread.
"""

from nbddp.errors import CollectiveAbortedError, CollectiveFailedError
from nbddp.rank.collectives.recording.group_counters import GroupCounters

#: What Gloo says when the other end is gone.
_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")


def failure(book: GroupCounters, error: BaseException) -> BaseException:
    """What is raised for ``error`` of an operation; its group is broken from now on.

    Returns:
        if the group was freed, the reason.
    """
    book.is_broken = True
    ended = book.ended
    if ended is not None:
        return ended()
    return lost(error) or error


def was_cut_off(book: GroupCounters, error: BaseException) -> bool:
    """Whether an operation has failed because of others, and not by what was asked for.

    What torch leaves behind when it does not know an operation, for example, is its own.
    """
    is_ours = book.ended is not None or isinstance(error, CollectiveAbortedError)
    return is_ours or lost(error) is not None


def lost(error: BaseException) -> CollectiveFailedError | None:
    """What to raise for an error of torch's that says that another member is gone."""
    text = str(error)
    if not any(words in text for words in _LOST):
        return None
    return CollectiveFailedError(f"the connection to another member of the group was lost\n{text}")
