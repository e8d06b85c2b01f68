"""How much text of a cell is shown.

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
#: A rank shows text again when it was slow for this long.
QUIET_S = 1.0


class Budget:
    """A bucket of bytes that fills steadily, and a limit of all bytes.

    Promises: in any time ``t`` at most ``burst + rate * t`` bytes are granted, and in all at most
    the total; only the last lines of gaps come on top (`spend`). Where ranks have more to show than
    there is room for, none takes what the others need of equal shares (`share_out`).
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
        self._has_refused = False  # for lack of what is left in all
        self._bytes_by_rank: Mapping[int, int] = {}  # that wait
        self._share_by_rank: dict[int, int] = {}  # that it may still take; empty: all that it has

    @property
    def is_spent(self) -> bool:
        """Whether nothing more is granted: the total is reached, as far as lines fit into it."""
        return self._has_refused or self._left < _MIN_LEFT_BYTES

    def room(self, now: float) -> int:
        """How many bytes would be granted now."""
        if self._filled_at is not None and now > self._filled_at:
            filled = self._bytes + (now - self._filled_at) * self._bytes_per_s
            self._bytes = min(self._burst, filled)
        self._filled_at = now
        return 0 if self.is_spent else max(0, min(int(self._bytes), self._left))

    def share_out(self, bytes_by_rank: Mapping[int, int], now: float) -> None:
        """Note how many bytes of each rank wait. The mapping stays current: it is read later."""
        waiting = [rank for rank, size in bytes_by_rank.items() if size]
        room = self.room(now)
        is_scarce = _WITH_LABELS * sum(bytes_by_rank.values()) > room and len(waiting) > 1
        self._bytes_by_rank = bytes_by_rank
        self._share_by_rank = dict.fromkeys(waiting, room // len(waiting)) if is_scarce else {}

    def grant(self, size: int, now: float, ranks: Sequence[int] = ()) -> bool:
        """Take ``size`` bytes for these ranks, or nothing if that is too much."""
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
        """Take ``size`` bytes in any case."""
        self._bytes = max(0.0, self._bytes - size)
        self._left -= size

    def give_back(self, size: int) -> None:
        """Add ``size`` bytes to what is left in all: they were cleared from the notebook."""
        self._left = min(self._total, self._left + size)
        self._has_refused = False

    def may_resume(self, gap: Gap, gaps: int, now: float) -> bool:
        """Whether ``gap``, one of ``gaps``, may close: its rank is slow, the bucket is filled."""
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
        """When `may_resume` should be asked again."""
        return None if self.is_spent else gap.since + QUIET_S
