"""What a user may change while the pool lives.

Runs in: the notebook's process. Pure.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from nbddp.wire.messages import (
    OnMismatch,
)

OnDeadlock: TypeAlias = Literal["abort", "report"]


OnDeath: TypeAlias = Literal["respawn", "keep"]


@dataclass(frozen=True)
class Config:
    """What a user may change while the pool lives."""

    on_deadlock: OnDeadlock = "abort"  #: ``report``: show it, and leave the ranks where they are
    on_mismatch: OnMismatch = "raise"
    on_death: OnDeath = "respawn"  #: ``keep``: no fresh rank takes the place of one that exited
