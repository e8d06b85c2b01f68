"""How much text of a cell is shown, and what is remembered of the rest.

Runs in: the notebook's main thread. Pure: no clock, no I/O; ``now`` comes in.
"""

from collections import deque
from collections.abc import Mapping, Sequence

from nbddp.notebook.output.line_folder import Item
from nbddp.settings import Settings
from nbddp.wire.messages import Stream

_TAIL_LINES = 20
_TAIL_BYTES = 8 * 1024
_MIN_TAIL_BYTES = 1024
_TAIL_LINE_CHARS = 2000
_MIN_LEFT_BYTES = 256
#: Of a chunk that is left out, at most this much is read for its last lines.
_READ_CHARS = 64 * 1024
#: Text with its labels is at most about so much larger.
_WITH_LABELS = 2
#: A rank shows text again when it was slow for this long.
QUIET_S = 1.0


class Gap(Item):
    """Text of one rank that is not shown: how much, and its last lines.

    While it is held it stands at the end of the rank's queue and takes what the rank prints.
    """

    __slots__ = ("_tail_bytes", "_tail_limit", "dropped_bytes", "is_cut", "lines", "recent_bytes",
                 "since", "tail", "total_bytes")  # fmt: skip

    def __init__(self, now: float, tail_limit_bytes: int) -> None:
        super().__init__(None, now, memory_bytes=2 * tail_limit_bytes)
        self.is_held = True
        self.tail: deque[tuple[Stream, str]] = deque()
        self._tail_bytes = 0
        self._tail_limit = tail_limit_bytes
        self.lines = 0
        self.total_bytes = 0
        self.dropped_bytes = 0  #: that never came here; their lines are not known
        self.is_cut = False  #: a line in ``tail`` is not whole
        self.since = now  #: since when ``recent_bytes`` counts
        self.recent_bytes = 0

    @property
    def left_out_lines(self) -> int:
        """Lines that will not be shown: all but the last ones."""
        return self.lines - len(self.tail)

    @property
    def left_out_bytes(self) -> int:
        """Bytes that will not be shown."""
        return self.dropped_bytes + max(0, self.total_bytes - self._tail_bytes)

    @property
    def has_left_out(self) -> bool:
        """Whether anything is missing besides the last lines."""
        return bool(self.left_out_lines or self.dropped_bytes or self.is_cut)

    def add_line(self, stream: Stream, line: str) -> None:
        """Count a line, and keep it as the last one."""
        size = len(line) + 1
        self.lines += 1
        self.total_bytes += size
        if len(line) > _TAIL_LINE_CHARS:
            line = "..." + line[-_TAIL_LINE_CHARS:]
            self.is_cut = True
        self.tail.append((stream, line))
        self._tail_bytes += len(line) + 1
        while len(self.tail) > _TAIL_LINES or (
            self._tail_bytes > self._tail_limit and len(self.tail) > 1
        ):
            self._tail_bytes -= len(self.tail.popleft()[1]) + 1

    def merge(self, later: "Gap") -> None:
        """Take what a later gap holds."""
        for stream, line in later.tail:
            self.add_line(stream, line)
        self.lines += later.left_out_lines
        self.total_bytes += later.left_out_bytes - later.dropped_bytes
        self.dropped_bytes += later.dropped_bytes
        self.is_cut |= later.is_cut

    def skip(self, text: str) -> str:
        """Count all of ``text`` but its last lines, which are returned.

        This is where floods end: its cost is that of `str.count`.
        """
        self.recent_bytes += len(text)
        start = len(text)
        for _ in range(_TAIL_LINES + 1):
            start = text.rfind("\n", 0, start)
            if start < 0:
                break
        start = max(start + 1, len(text) - _READ_CHARS)
        if start <= 0:
            return text
        self.is_cut |= text[start - 1] != "\n"
        self.lines += text.count("\n", 0, start)
        self.total_bytes += start
        return text[start:]


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
        self._share_by_rank: dict[int, int] = {}  # what each may still take; empty: all that it has

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
        """These bytes wait to be shown, and change as they are."""
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
        """Text was cleared: it is no longer in the notebook."""
        self._left = min(self._total, self._left + size)
        self._has_refused = False

    def may_resume(self, gap: Gap, gaps: int, now: float) -> bool:
        """Whether ``gap``, one of ``gaps``, may close: its rank was slow, the bucket is filled."""
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


#: Part of every notice.
LEFT_OUT = " left out here"


def left_out_notice(lines: int, size: int, paths: Sequence[str]) -> str:
    """``... 99,000 lines (1.2 MB) left out here; the whole output: /path/rank2.log``."""
    amount = f"{format_bytes(size)}"
    if lines:
        amount = f"{lines:,} line{'' if lines == 1 else 's'} ({amount})"
    if not paths:
        return f"... {amount}{LEFT_OUT}"
    where = paths[0]
    if len(paths) > 1:
        folder, _, last = paths[-1].rpartition("/")
        where += f" to {last if paths[0].rpartition('/')[0] == folder else paths[-1]}"
    return f"... {amount}{LEFT_OUT}; the whole output: {where}"


def format_bytes(size: int) -> str:
    """``1.2 MB``."""
    if size < 1000:
        return f"{size} B"
    number = float(size)
    for unit in ("kB", "MB"):
        number /= 1000
        if number < 999.95:
            return f"{number:.1f} {unit}"
    return f"{number / 1000:.1f} GB"
