"""The listeners for events that ranks send without a request.

Runs in: the hub thread calls, if not said otherwise; a listener must neither block nor raise.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from nbddp.controller.state import NotifyUser, PoolSnapshot
from nbddp.line_breaks import with_line_breaks
from nbddp.wire.messages import (
    ClearOutput,
    CommFromRank,
    DebugEvent,
    Display,
    Output,
    RankExited,
    Result,
)

#: The rank in a message about a process behind the ranks.
NO_RANK = -1
_MOST_HELD = 4096

BackgroundEvent: TypeAlias = Output | Display | Result | ClearOutput


def _ignore(*_: object) -> None:
    """The listener of a script without a notebook."""


@dataclass
class Listeners:
    """The listeners of a pool; they stay when it gets fresh ranks."""

    #: Gets the output of ranks while no cell runs, and None at the end.
    background: Callable[[BackgroundEvent | None], None] = _ignore
    _held: deque[BackgroundEvent | None] = field(default_factory=lambda: deque(maxlen=_MOST_HELD))
    rank_exited: Callable[[RankExited], None] = _ignore
    #: Gets messages of widgets, with their buffers.
    comm: Callable[[CommFromRank, list[bytes]], None] = _ignore
    debug: Callable[[DebugEvent], None] = _ignore
    #: Gets the pool with what it waits for while it is restarted, or lost nodes are replaced; the
    #: thread of the restart calls it.
    progress: Callable[[PoolSnapshot], None] = _ignore

    def hold_background(self) -> None:
        """Hold back what comes before `release_background`: a pool was taken back."""
        self.background = self._held.append

    def release_background(self) -> None:
        """Give the listener what was held back."""
        while self._held:
            self.background(self._held.popleft())


def notice_of(notify: NotifyUser) -> Output:
    """A message to the user, as an output between cells."""
    rank = NO_RANK if notify.rank is None else notify.rank
    text = with_line_breaks(f"nbddp: {notify.text}")
    return Output(run_id=None, rank=rank, stream="stderr", text=f"{text}\n")
