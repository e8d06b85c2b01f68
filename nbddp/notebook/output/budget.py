"""Limits the text of a cell that is shown.

Runs in: the notebook's main thread. Pure: no clock, no I/O; ``now`` comes in.
"""

from collections.abc import Mapping, Sequence

from nbddp.notebook.output.items import Gap
from nbddp.settings import Settings

_TAIL_BYTES = 8 * 1024
_MIN_TAIL_BYTES = 1024
_MIN_LEFT_BYTES = 256
#: Labels make text larger, at most by about this factor.
_WITH_LABELS = 2
#: The text of a rank is shown again after it was slow for this long.
QUIET_S = 1.0


class Budget:
    """A token bucket of bytes that fills steadily, and a limit of all bytes.

    Promises: in any time ``t`` at most ``burst + rate * t`` bytes are granted, and in total at most
    ``notebook_total_bytes``; only the last lines of gaps come on top (`spend`). If the text of all
    ranks does not fit, no rank takes room that the others need for equal shares (`share_out`).

    Args:
        settings: rate and limits.
        ranks: number of ranks that run the cell.
    """

    def __init__(self, settings: Settings, ranks: int) -> None:
        self._burst = float(settings.notebook_burst_bytes)
        self._bytes_per_s = settings.notebook_bytes_per_s
        self._bytes = self._burst
        self._total = settings.notebook_total_bytes
        self._left = self._total
        self._filled_at: float | None = None
        self.tail_bytes = max(
            _MIN_TAIL_BYTES, min(_TAIL_BYTES, settings.notebook_burst_bytes // max(1, ranks))
        )
        self._has_refused = False  # because the total does not suffice
        self._bytes_by_rank: Mapping[int, int] = {}  # waiting text
        self._share_by_rank: dict[int, int] = {}  # room for each rank; empty: no rank is limited

    @property
    def is_spent(self) -> bool:
        """Whether nothing more is granted: the next line does not fit into the total."""
        return self._has_refused or self._left < _MIN_LEFT_BYTES

    def room(self, now: float) -> int:
        """Return the number of bytes that would be granted now."""
        if self._filled_at is not None and now > self._filled_at:
            filled = self._bytes + (now - self._filled_at) * self._bytes_per_s
            self._bytes = min(self._burst, filled)
        self._filled_at = now
        return 0 if self.is_spent else max(0, min(int(self._bytes), self._left))

    def share_out(self, bytes_by_rank: Mapping[int, int], now: float) -> None:
        """Give each rank with waiting text an equal share of the room, if it is scarce.

        Args:
            bytes_by_rank: bytes that wait; later calls read this mapping again.
            now: monotonic time in seconds.
        """
        waiting = [rank for rank, size in bytes_by_rank.items() if size]
        room = self.room(now)
        is_scarce = _WITH_LABELS * sum(bytes_by_rank.values()) > room and len(waiting) > 1
        self._bytes_by_rank = bytes_by_rank
        self._share_by_rank = dict.fromkeys(waiting, room // len(waiting)) if is_scarce else {}

    def grant(self, size: int, now: float, ranks: Sequence[int] = ()) -> bool:
        """Take ``size`` bytes for these ranks, or none if they do not fit.

        Returns:
            Whether they were taken.
        """
        shares, waiting = self._share_by_rank, self._bytes_by_rank
        kept = sum(min(shares[rank], waiting[rank]) for rank in shares if rank not in ranks)
        if size > self.room(now) - kept:
            self._has_refused |= size > self._left
            return False
        for rank in shares.keys() & set(ranks):
            shares[rank] = max(0, shares[rank] - size)
        self._bytes -= size
        self._left -= size
        return True

    def spend(self, size: int) -> None:
        """Take ``size`` bytes, also if they do not fit."""
        self._bytes = max(0.0, self._bytes - size)
        self._left -= size

    def give_back(self, size: int) -> None:
        """Return ``size`` bytes to the total: they were cleared from the notebook."""
        self._left = min(self._total, self._left + size)
        self._has_refused = False

    def may_resume(self, gap: Gap, gaps: int, now: float) -> bool:
        """Return whether a gap may close: its rank is slow, and the bucket is filled.

        Args:
            gap: an open gap.
            gaps: number of open gaps.
            now: monotonic time in seconds.
        """
        if self.is_spent or now < gap.since + QUIET_S:
            return False
        slow_bytes = self._bytes_per_s / 2 / gaps * (now - gap.since)
        self.room(now)  # fills the bucket
        if gap.recent_bytes <= slow_bytes and self._bytes >= self._burst / 2:
            return True
        gap.since = now
        gap.recent_bytes = 0
        return False

    def resume_at(self, gap: Gap) -> float | None:
        """Return when to call `may_resume` again; None: never."""
        return None if self.is_spent else gap.since + QUIET_S
