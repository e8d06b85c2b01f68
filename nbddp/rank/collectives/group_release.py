"""Lets go of stock groups, never on a thread of their own backend.

Runs in: the rank process, any thread. The last owner of a group runs its destructor, which joins
the threads of its backend. Such a thread may be the last owner: Gloo's threads run the callbacks of
futures, and the garbage collector in them. A thread that joins itself ends the process
(``std::terminate``).
"""

import _thread
import threading
from typing import Any

#: Groups that nobody can let go of any more: the interpreter ends.
_left: list[list[Any]] = []


def release(held: list[Any]) -> None:
    """Empty this list, on the main thread or on a new one.

    Args:
        held: all that is left of a group. The caller holds none of it elsewhere.
    """
    if threading.get_ident() == threading.main_thread().ident:
        held.clear()
        return
    try:
        _thread.start_new_thread(held.clear, ())
    except RuntimeError:
        _left.append(held)
