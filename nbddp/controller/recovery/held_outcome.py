"""The outcome of a cell that has ended, held back until the pool is whole.

Runs in: the hub thread. Pure; a part of `nbddp.controller.recovery.machine`.
"""

from nbddp.controller.recovery.damage import with_exit, with_late_ends, with_torn
from nbddp.controller.state import RunOutcome
from nbddp.wire.messages import GroupsRebuilt, RankExited

#: Agents of several nodes often end together, and are seen one after another within this time. The
#: outcome waits for it, to name them all; `rebuild._SETTLE_S`, before a rebuild, is for ranks that
#: exit together.
AGENTS_END_S = 0.3


class HeldOutcome:
    """The outcome, with all that happens to its ranks meanwhile."""

    def __init__(self) -> None:
        self.outcome: RunOutcome | None = None  #: None: none is held back
        self._since = 0.0
        self._settles_until: float | None = None

    @property
    def settles(self) -> bool:
        """Whether agents were lost just now, so that others may be lost with them."""
        return self._settles_until is not None

    def next_deadline(self) -> float | None:
        """The time at which `end_settling` has something to do."""
        return self._settles_until

    def hold(self, outcome: RunOutcome, now: float, *, settle: bool) -> None:
        """Hold an outcome back.

        Args:
            outcome: the end of a cell.
            now: monotonic time in seconds.
            settle: wait a moment for the ends of more agents.
        """
        self.outcome, self._since = outcome, now
        self._settles_until = now + AGENTS_END_S if settle else None

    def end_settling(self, now: float) -> bool:
        """End such a moment if its time is over; return whether it has ended just now."""
        if self._settles_until is None or now < self._settles_until:
            return False
        self._settles_until = None
        return True

    def rank_exited(self, exited: RankExited, now: float) -> None:
        """Note the exit of a rank that had left the cell."""
        if self.outcome is not None:
            self.outcome = with_exit(self.outcome, exited, now - self._since)

    def note_torn(self, answer: GroupsRebuilt) -> None:
        """Note operations that a rank has given up."""
        if self.outcome is not None:
            self.outcome = with_torn(self.outcome, answer)

    def note_late_ends(self, late: object) -> None:
        """Note ranks that have left the cell late, if a message says so."""
        self.outcome = with_late_ends(self.outcome, late)

    def release(self) -> RunOutcome | None:
        """Return the outcome, and hold it no longer."""
        outcome, self.outcome, self._settles_until = self.outcome, None, None
        return outcome
