"""Ends the processes that ranks leave behind: leftovers of dead ranks, and orphans.

Runs in: the agent's thread. A descendant of a rank that has lost its parent is adopted by the agent
(``PR_SET_CHILD_SUBREAPER``): it is an orphan.
"""

import os
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from nbddp.agent.rank_process import RankProcess
from nbddp.settings import RANK_MARK_ENV
from nbddp.system import process_tree

#: Processes examined in one step of a search, which takes less than a millisecond.
_PROCESSES_PER_STEP = 20


class Leftovers:
    """Processes that dead ranks have left behind while other ranks live on."""

    def __init__(self) -> None:
        self._searches: deque[Iterator[None]] = deque()

    @property
    def is_empty(self) -> bool:
        """True if all leftovers have been ended."""
        return not self._searches

    def add(self, process: RankProcess) -> None:
        """Search for the leftovers of a rank that has ended and was collected."""
        self._searches.append(_search(process))

    def step(self) -> None:
        """Do a small part of the work."""
        if self._searches:
            try:
                next(self._searches[0])
            except StopIteration:
                self._searches.popleft()

    def clear(self) -> None:
        """Forget all searches, because all orphans have been ended."""
        self._searches.clear()


def _search(process: RankProcess) -> Iterator[None]:
    """End the processes that a rank has left behind, step by step.

    Called after the rank was collected, while other ranks live on. A leftover is recognized because
    it was seen before, by its session, or by the mark in its environment. The last search reads the
    environment of each process of the machine, and other ranks must not wait for that.
    """
    seen = {
        pid for pid, start in process.descendants.items() if process_tree.start_time(pid) == start
    }
    orphans = process_tree.children_of(os.getpid())
    seen |= {pid for pid in orphans if process_tree.session_and_start(pid)[0] == process.pid}
    _end_with_descendants(seen)
    for number, pid in enumerate(process_tree.processes()):
        if number % _PROCESSES_PER_STEP == 0:
            yield
        if process_tree.was_started_with(pid, RANK_MARK_ENV, process.mark):
            _end_with_descendants({pid})


def _end_with_descendants(pids: set[int]) -> None:
    descendants = [process_tree.descendants_of(pid) for pid in pids]
    for pid in pids.union(*descendants):
        process_tree.kill_quietly(pid, signal.SIGKILL)


def end_orphans(helpers: set[int]) -> bool:
    """End and collect the orphans that this process adopted; returns whether none is left."""
    orphans = process_tree.children_of(os.getpid()) - helpers
    for pid in orphans:
        process_tree.kill_quietly(pid, signal.SIGKILL)
    reap_orphans(helpers)
    return not orphans


def reap_orphans(helpers: set[int]) -> None:
    """Collect adopted orphans that have ended, so that no zombie is left."""
    for pid in process_tree.children_of(os.getpid()) - helpers:
        with suppress(ChildProcessError):  # collected meanwhile
            os.waitpid(pid, os.WNOHANG)
