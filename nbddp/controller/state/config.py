"""The settings that a user may change while the pool lives.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args, get_type_hints

from nbddp.errors import BadOptionError
from nbddp.wire.messages import OnMismatch

OnDeadlock: TypeAlias = Literal["abort", "report", "debug"]
OnDeath: TypeAlias = Literal["respawn", "keep"]
Sanitize: TypeAlias = Literal["off", "on", "data", "all"]


@dataclass(frozen=True)
class Config:
    """The settings that a user may change while the pool lives, by `Pool.configure`.

    Example:
        >>> pool.config.on_mismatch
        'raise'
    """

    #: ``report``: show it, and leave the ranks where they are; ``debug``: ask before they are freed
    on_deadlock: OnDeadlock = "abort"
    #: before the rank sends anything, where it compares; ``warn``; ``off``: not compared
    on_mismatch: OnMismatch = "raise"
    on_death: OnDeath = "respawn"  #: ``keep``: no fresh rank takes the place of one that exited
    #: ``on``, ``data``, ``all``: each cell runs as with ``%%ddp --sanitize`` and this value
    sanitize: Sanitize = "off"


def checks_of(sanitize: str) -> tuple[str, ...]:
    """The checks of a value of ``sanitize``: ``on``: tensors of operations; ``data``: data."""
    return {"on": ("on",), "data": ("data",), "all": ("on", "data")}.get(sanitize, ())


#: The legal values by name, the default first.
LEGAL_CONFIG: dict[str, tuple[str, ...]] = {
    name: get_args(values) for name, values in get_type_hints(Config).items()
}


def config_error(name: str, value: str) -> str:
    """Return why ``name=value`` is not legal, and what is legal; empty if it is."""
    if name not in LEGAL_CONFIG:
        legal = ", ".join(f"{key}={'|'.join(values)}" for key, values in LEGAL_CONFIG.items())
        return f"{name!r} is unknown; legal: {legal}"
    if value not in LEGAL_CONFIG[name]:
        legal = " or ".join(f"{name}={each}" for each in LEGAL_CONFIG[name])
        problem = f"{name}={value} is unknown" if value else f"{name} has no value"
        return f"{problem}; legal: {legal}"
    return ""


def with_changes(config: Config, changes: Mapping[str, str]) -> Config:
    """Return ``config`` with changes.

    Raises:
        BadOptionError: a name or a value is not legal.
    """
    for name, value in changes.items():
        if fault := config_error(name, value):
            raise BadOptionError(fault)
    return replace(config, **changes)  # type: ignore[arg-type]  # checked above
