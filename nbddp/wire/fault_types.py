"""Faults on purpose, as data: what happens, on which ranks, and at which moment.

Runs in: every process. Pure. `nbddp.wire.fault_grammar` reads them from the user's text;
`nbddp.rank.collectives.fault_strikes` lets them strike.
"""

from typing import Final, Literal, TypeAlias

import msgspec

from nbddp.wire.flight_recorder import LoopVariable
from nbddp.wire.rank_set import RankSet

#: ``delay``: sleep. ``raise``: raise an exception. ``kill``: SIGKILL. ``stop``: SIGSTOP, then
#: SIGCONT. ``skip``: leave an operation out. ``flip``: change a bit of its tensor. ``nan``: put a
#: NaN into a gradient. ``link``: delay operations between two ranks. ``store``: delay operations of
#: the store. ``random``: any of `RANDOM_ACTS`, by chance.
Act: TypeAlias = Literal[
    "delay", "raise", "kill", "stop", "skip", "flip", "nan", "link", "store", "random"
]
#: ``begin``: before the first line of the cell. ``line``: before a line of the cell. ``loop``:
#: before the first line in an iteration of a loop. ``operation``: before an operation is issued.
#: ``backward``: in a backward. ``always``: each time.
When: TypeAlias = Literal["begin", "line", "loop", "operation", "backward", "always"]
#: The name that stands for each operation.
ANY_OPERATION: Final = "operation"
RANDOM_ACTS: Final = ("delay", "raise", "kill", "stop", "skip", "flip")
#: The longest delay and stop of a random fault, in seconds.
RANDOM_DELAY_S, RANDOM_STOP_S = 0.2, 0.2
#: How the line of a fault that strikes begins, and the text of an exception that one raises.
ON_PURPOSE: Final = "fault on purpose"


class Moment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The moment at which a fault strikes, once."""

    when: When = "begin"
    name: str = ""  #: of the operation, or of the variable of the loop
    number: int = 0  #: of the call in the cell, from 1; of the line; the value of the variable

    def __str__(self) -> str:
        """Return the text that the grammar reads; empty: it needs none."""
        match self.when:
            case "line":
                return f"at line {self.number}"
            case "loop":
                return f"at {LoopVariable(self.name, self.number)}"
            case "operation":
                return f"before {self.call}"
            case _:
                return ""

    @property
    def call(self) -> str:
        """``all_reduce #3``, or ``the next all_reduce``."""
        return f"{self.name} #{self.number}" if self.number > 1 else f"the next {self.name}"


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault."""

    act: Act
    ranks: tuple[int, ...]  #: each of them is struck; of a link: its two ends
    moment: Moment = Moment()
    seconds: float = 0.0  #: of a delay or a stop; of a link or the store: before each operation
    error: str = ""  #: name of the exception
    bytes_per_s: float = 0.0  #: of a link; 0: no limit
    seed: int = 0  #: of random faults
    rate: float = 0.0  #: of random faults: the chance that one strikes before an operation
    acts: tuple[str, ...] = ()  #: of random faults

    def __str__(self) -> str:  # noqa: PLR0911 - one for each act
        """Return a text that the grammar reads as this fault."""
        ranks = RankSet.of(self.ranks)
        who = ranks.describe(in_full=True)
        at = f" {self.moment}" if str(self.moment) else ""
        match self.act:
            case "delay" | "stop":
                return f"{who}: {self.act} {duration(self.seconds)}{at}"
            case "raise":
                return f"{who}: raise {self.error}{at}"
            case "kill":
                return f"{who}: kill{at}"
            case "skip":
                return f"{who}: skip {self.moment.call}"
            case "flip":
                return f"{who}: flip a bit in {self.moment.call}"
            case "nan":
                return f"nan in {who}'s gradient{at}"
            case "store":
                return f"store: slow {duration(self.seconds)}"
            case "link":
                rate = f"{self.bytes_per_s / 1e6:g} MB/s" if self.bytes_per_s else ""
                latency = duration(self.seconds) if self.seconds else ""
                ends = "-".join(map(str, self.ranks))
                return f"link {ends}: {', '.join(filter(None, (rate, latency)))}"
            case "random":
                acts = "" if self.acts == RANDOM_ACTS else f", acts={'+'.join(self.acts)}"
                return f"random: seed={self.seed}, rate={self.rate:g}{acts}"

    def link_s(self, nbytes: int) -> float:
        """Seconds that an operation of this size takes on the link, before it is issued."""
        return self.seconds + (nbytes / self.bytes_per_s if self.bytes_per_s else 0.0)


def duration(seconds: float) -> str:
    """``2 s``, ``100 ms``."""
    return f"{seconds:.6g} s" if seconds >= 1 else f"{seconds * 1000:.4g} ms"


def missed_text(missed: tuple[str, ...]) -> str:
    """The line at the end of a cell about faults that did not strike."""
    count = f"{len(missed)} fault{'s' * (len(missed) > 1)}"
    return f"{count} did not strike: {'; '.join(missed)}"
