"""Who hears what ranks tell without being asked.

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

#: In the place of the rank in what is told of a process behind the ranks.
NO_RANK = -1

BackgroundEvent: TypeAlias = Output | Display | Result | ClearOutput


def _ignore(*_: object) -> None:
    """Nobody listens: a script without a notebook."""


@dataclass
class Listeners:
    """They stay when the pool gets fresh ranks."""

    #: Gets what ranks show while no cell runs, and None at the end.
    background: Callable[[BackgroundEvent | None], None] = _ignore
    rank_exited: Callable[[RankExited], None] = _ignore
    #: Gets messages of widgets, with their buffers.
    comm: Callable[[CommFromRank, list[bytes]], None] = _ignore
    debug: Callable[[DebugEvent], None] = _ignore
