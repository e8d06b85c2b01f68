"""The difference between the clocks of two machines, estimated from questions about the time.

Runs in: the notebook's process. Pure.

The estimate is that of NTP (RFC 5905, section 8) with the sample of the shortest round trip, which
has the smallest error: half of that round trip bounds it.
"""

from collections import deque

#: Samples that count; clocks drift, so old ones are forgotten.
_SAMPLES = 60


class ClockOffset:
    """The clock of another machine minus the clock of this one.

    Example:
        >>> clock = ClockOffset()
        >>> clock.add(sent_ns=1_000, there_ns=501_500, received_ns=2_000)
        >>> clock.offset_ns, clock.error_ns
        (500000, 500)
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=_SAMPLES)  # round trip, offset

    def add(self, sent_ns: int, there_ns: int, received_ns: int) -> None:
        """Add the answer to a question.

        Args:
            sent_ns: when the question was sent, on the clock of this machine, in nanoseconds.
            there_ns: when it was answered, on the other clock.
            received_ns: when the answer came, on the clock of this machine.
        """
        self._samples.append((received_ns - sent_ns, there_ns - (sent_ns + received_ns) // 2))

    @property
    def is_known(self) -> bool:
        """Whether there was an answer."""
        return bool(self._samples)

    @property
    def offset_ns(self) -> int:
        """The other clock minus this one, in nanoseconds; 0 before the first answer."""
        return min(self._samples)[1] if self._samples else 0

    @property
    def error_ns(self) -> int:
        """The largest error of `offset_ns`, in nanoseconds; 0 before the first answer."""
        return min(self._samples)[0] // 2 if self._samples else 0
