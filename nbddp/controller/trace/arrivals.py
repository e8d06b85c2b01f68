"""The order in which ranks came, as far as the clocks of their nodes tell it. Pure.

Runs in: the notebook's process. Two times of one clock have an order. Times of two clocks have one
if they are further apart than both clocks are known.
"""

from collections.abc import Collection
from typing import Protocol


class Clock(Protocol):
    """The clock of a node."""

    @property
    def node(self) -> int:
        """The number of the node."""

    @property
    def offset_ns(self) -> int:
        """The clock minus that of the notebook."""

    @property
    def error_ns(self) -> int:
        """The largest error of the offset."""


class Arrival(Protocol):
    """The time at which a rank came."""

    @property
    def rank(self) -> int:
        """The global rank."""

    @property
    def created_ns(self) -> int:
        """The time, on the clock of the notebook."""

    @property
    def clock(self) -> Clock | None:
        """The clock that has measured it; None: that of the notebook."""


def last_of(arrivals: Collection[Arrival]) -> int | None:
    """Return the rank that came last; None: the clocks do not tell it."""
    last = max(arrivals, key=lambda each: each.created_ns)  # of equal ones the first
    lead_ns = [(last.created_ns - each.created_ns, error_ns(each, last)) for each in arrivals]
    # Of two clocks that are known exactly, equal times are equal, as those of one clock.
    is_proven = all(not error or lead > error for lead, error in lead_ns)
    return last.rank if is_proven else None


def error_ns(one: Arrival, other: Arrival) -> int:
    """Return the largest error of the time between two arrivals; 0: one clock has measured them."""
    clocks = {each.clock.node: each.clock for each in (one, other) if each.clock is not None}
    is_shared = len(clocks) == 1 and one.clock is not None and other.clock is not None
    return 0 if is_shared else sum(clock.error_ns for clock in clocks.values())


def largest_error_ns(arrivals: Collection[Arrival]) -> int:
    """Return the largest error of the time between any two of the arrivals."""
    clocks = {each.clock.node: each.clock for each in arrivals if each.clock is not None}
    is_one = len(clocks) < 2 and all(each.clock is not None for each in arrivals)
    return 0 if is_one else sum(sorted(clock.error_ns for clock in clocks.values())[-2:])
