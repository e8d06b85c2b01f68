"""The listeners for events that ranks send without a request.

Runs in: the hub thread calls; a listener must neither block nor raise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

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

BackgroundEvent: TypeAlias = Output | Display | Result | ClearOutput


def _ignore(*_: object) -> None:
    """The listener of a script without a notebook."""


@dataclass
class Listeners:
    """The listeners of a pool; they stay when it gets fresh ranks."""

    #: Gets the output of ranks while no cell runs, and None at the end.
    background: Callable[[BackgroundEvent | None], None] = _ignore
    rank_exited: Callable[[RankExited], None] = _ignore
    #: Gets messages of widgets, with their buffers.
    comm: Callable[[CommFromRank, list[bytes]], None] = _ignore
    debug: Callable[[DebugEvent], None] = _ignore
