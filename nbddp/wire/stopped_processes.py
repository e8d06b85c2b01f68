"""Processes of a pool that are stopped, for example by SIGSTOP, and are sent SIGCONT.

Runs in: the notebook's process, about agents; agents, about the fork server and the store. No user
needs one of them stopped, and a pool with a stopped one cannot even be ended.
"""

from nbddp.system import process_tree
from nbddp.wire.messages import HelperStopped

#: A process that is stopped again and again is reported at most this often.
_REPORT_S = 10.0
_NEVER = float("-inf")


class StoppedProcesses:
    """Resumes stopped processes, and remembers those that stay stopped."""

    def __init__(self) -> None:
        self._held: set[int] = set()  #: process ids
        self._reported_at: dict[int, float] = {}

    def check(self, node: int, name: str, pid: int, now: float) -> HelperStopped | None:
        """Check a process, which costs 20 us, and resume it if it is stopped.

        Args:
            node: the node of the process.
            name: its name in texts for the user.
            pid: its process id; 0: there is no such process.
            now: monotonic time in seconds.

        Returns:
            The event to report, once; None while the process runs.
        """
        was_held = pid in self._held
        was_stopped = bool(pid) and process_tree.is_stopped(pid)
        if was_stopped and process_tree.is_held(pid):
            self._held.add(pid)
            return None if was_held else _event(node, name, pid, goes_on=False)
        self._held.discard(pid)
        is_new = was_stopped and now - self._reported_at.get(pid, _NEVER) >= _REPORT_S
        if not was_held and not is_new:
            return None
        self._reported_at[pid] = now
        return _event(node, name, pid, goes_on=True)


def _event(node: int, name: str, pid: int, *, goes_on: bool) -> HelperStopped:
    return HelperStopped(node=node, name=name, pid=pid, goes_on=goes_on)
