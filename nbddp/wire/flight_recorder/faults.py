"""What the sanitizer saw on one rank during a cell, as facts; see docs/sanitizer.md.

Runs in: every process. Pure. `nbddp.controller.diagnosis` writes the English.
"""

from typing import Literal, TypeAlias

from nbddp.wire.flight_recorder.schema import Operation, Site, _Part

FaultKind: TypeAlias = Literal[
    "write",  #: a buffer of an open operation was written
    "resize",  #: a buffer of an open operation got other memory
    "read",  #: the result of an open operation was read
    "overlap",  #: an operation was issued on memory of an open one
    "not-awaited",  #: no code can wait for an operation any more, or none has until the end
    "not-finite",  #: an operation was given NaN or Inf
]


class Fault(_Part, frozen=True):
    """One fault of a rank."""

    kind: FaultKind
    operation: Operation  #: the open one, or the one that was given NaN or Inf
    site: Site = Site()  #: the line that touched its memory; without a line: not known
    function: str = ""  #: of torch, by which the line touched it: ``add_``
    other: Operation | None = None  #: the second operation on the same memory
    has_handle: bool = False  #: not awaited, but a later cell can wait for it
    value: Literal["", "NaN", "Inf"] = ""  #: what is not finite
    parameter: str = ""  #: the one whose gradient it is: ```net.0.weight` of Model``
    time_ns: int = 0  #: CLOCK_REALTIME; orders values of one machine that are not finite


class SanitizerReport(_Part, frozen=True):
    """What the sanitizer saw on a rank in a cell."""

    faults: tuple[Fault, ...] = ()
