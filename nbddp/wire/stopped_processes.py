"""Processes of a pool that stand still, by SIGSTOP for example, and are told to go on.

Runs in: the notebook's process, about agents; agents, about the fork server and the store. Nobody
needs one of them to stand still, and a pool in which one does cannot even be ended.
"""

from nbddp.system import process_tree
from nbddp.wire.messages import HelperStopped

#: One that is stopped again and again is told of so often.
_TELL_S = 10.0
_NEVER = float("-inf")


class Standing:
    """Remembers the processes that stood still."""

    def __init__(self) -> None:
        self._held: set[int] = set()  #: process ids
        self._told_at: dict[int, float] = {}

    def look(self, node: int, name: str, pid: int, now: float) -> HelperStopped | None:
        """Look at a process, which costs 20 us, and tell it to go on if it stands still.

        Args:
            node: to which it belongs.
            name: for the user.
            pid: its number; 0: there is no such process.
            now: monotonic time in seconds.

        Returns:
            What has become of it, once; None while all is well.
        """
        was_held = pid in self._held
        stood = bool(pid) and process_tree.is_stopped(pid)
        if stood and process_tree.is_held(pid):
            self._held.add(pid)
            return None if was_held else _told(node, name, pid, goes_on=False)
        self._held.discard(pid)
        is_new = stood and now - self._told_at.get(pid, _NEVER) >= _TELL_S
        if not was_held and not is_new:
            return None
        self._told_at[pid] = now
        return _told(node, name, pid, goes_on=True)


def _told(node: int, name: str, pid: int, *, goes_on: bool) -> HelperStopped:
    return HelperStopped(node=node, name=name, pid=pid, goes_on=goes_on)
