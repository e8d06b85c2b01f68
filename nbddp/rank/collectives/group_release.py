"""Releases stock groups, never on a thread of their own backend.

Runs in: the rank process, any thread. The last owner of a group runs its destructor, which joins
the threads of its backend. Such a thread may be the last owner, because Gloo's threads run
callbacks of futures, and the garbage collector in them. A thread that joins itself ends the process
(``std::terminate``).
"""

import _thread
import threading
from typing import Any

#: Groups that cannot be released any more, because the interpreter is ending.
_left: list[list[Any]] = []


def release(held: list[Any]) -> None:
    """Empty this list, on the main thread or on a new one.

    Args:
        held: the last references to a group; the caller has no others.
    """
    if threading.get_ident() == threading.main_thread().ident:
        held.clear()
        return
    try:
        _thread.start_new_thread(held.clear, ())
    except RuntimeError:
        _left.append(held)
