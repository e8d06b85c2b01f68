"""The knowledge about one rank: its state, its last answer, its error.

Runs in: the notebook's process. Pure.
"""

from dataclasses import dataclass

from nbddp.controller.diagnosis.exit_phrase import EXITED, ExitPhrase
from nbddp.controller.diagnosis.report import RankStatus
from nbddp.wire.flight_recorder import (
    LEFT_DEBUGGER,
    ExceptionLine,
    Mismatch,
    Operation,
    RankLook,
    SanitizerReport,
)
from nbddp.wire.rank_set import Rank


@dataclass(frozen=True)
class RankView:
    """The controller's knowledge about one rank."""

    rank: Rank
    state: RankStatus
    look: RankLook | None = None  #: the rank's own answer, in every state; None: it did not answer
    error: ExceptionLine | None = None  #: the exception that the rank raised, if it is known
    was_freed: bool = False  #: it raised because nbddp had ended its operation
    mismatches: tuple[Mismatch, ...] = ()  #: those that it saw during the cell
    sanitizer: SanitizerReport | None = None  #: what it saw in the cell; None: it was off
    #: Of a dead rank, or of the one whose place a starting rank takes: ``SIGKILL (signal 9)``.
    exit_text: str = ""
    exit_phrase: ExitPhrase = EXITED  #: of a dead rank: ``exited with SIGKILL (signal 9)``
    #: Of a dead rank: its agent is lost, and its records with it; perhaps its process still runs.
    lost_agent: bool = False
    was_given_up: bool = False  #: with that: nobody has told the end of the agent
    #: Of a silent or dead rank: its agent has read them from shared memory.
    operations: tuple[Operation, ...] = ()
    stack_text: str = ""
    is_stopped: bool = False  #: a signal or a debugger has stopped its process, says its agent
    #: Of a rank that neither it nor its agent describes: why, as far as that is known.
    unheard: str = ""
    is_fresh: bool = False  #: it took the place of one that ended in this cell, and has run nothing
    after: ExceptionLine | None = None  #: the exception that it was handling when it raised

    @property
    def handling(self) -> ExceptionLine | None:
        """The exception that the rank is, or was, handling."""
        if self.state != "running" or self.look is None:
            return self.after
        return None if self.look.main is None else self.look.main.handling

    @property
    def is_reforming(self) -> bool:
        """Whether the rank makes its process groups again: no cell runs there meanwhile."""
        return self.look is not None and self.look.activity == "reforming"

    @property
    def is_over(self) -> bool:
        """Whether the main thread of the rank has no more to do in this cell."""
        return self.state in ("finished", "raised", "idle", "dead")

    @property
    def has_left_debugger(self) -> bool:
        """Whether the user has left the cell with ``q`` in the debugger."""
        is_quit = self.error is not None and self.error.name == LEFT_DEBUGGER
        return self.state == "raised" and is_quit

    @property
    def raise_phrase(self) -> str:
        """The end of a rank that raised: ``raised ValueError: boom``, ``left the debugger``."""
        if self.has_left_debugger:
            return "left the debugger"
        return f"raised {'an error' if self.error is None else self.error.summary}"

    @property
    def has_mismatched(self) -> bool:
        """Whether the rank raised because it saw a mismatch."""
        return self.state == "raised" and bool(self.mismatches)


class RankViews(dict[Rank, RankView]):
    """The view of each rank of a pool.

    The view of any other number is that of a silent rank: ranks report the members of their groups,
    and a group may have processes that are no ranks of the pool.
    """

    def __missing__(self, rank: Rank) -> RankView:
        return RankView(rank=rank, state="silent")


def nothing_known(view: RankView) -> tuple[str, str]:
    """``: nothing has been heard of node 1 (n2) for 12 s, so nothing is known of it``.

    Returns:
        The end of a sentence about one rank, and about several, that nobody describes.
    """
    start = f": {view.unheard}, so nothing is known of"
    return f"{start} it", f"{start} them"
