"""The output of the last cells, for ``%ddp output``.

Runs in: the notebook's process; a thread that shows a cell of the background may add. No I/O.
"""

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from nbddp.controller.cell_errors import cell_error, freed_ranks
from nbddp.controller.hub import CellEvent
from nbddp.controller.state import RunOutcome
from nbddp.notebook.output.cell_output import AnyOut
from nbddp.settings import Settings
from nbddp.wire.flight_recorder import cell_name
from nbddp.wire.messages import (
    ClearOutput,
    Display,
    FaultStruck,
    Output,
    RankExited,
    Result,
    RunFinished,
)
from nbddp.wire.rank_set import Rank, RankSet

#: Memory for the events of one cell; the oldest go first.
MAX_CELL_BYTES = 4 * 1024 * 1024
#: This many cells are kept.
MAX_CELLS = 20
#: Memory of an event besides its text.
_EVENT_BYTES = 300

_Printed = Output | Display | Result | ClearOutput | FaultStruck


@dataclass(frozen=True)
class Source:
    """The cell that gave an output, and its pool, which may have stopped since.

    Attributes:
        cell: the number of the cell.
        run_id: names its run.
        ranks: the ranks that run it.
        world_size: number of ranks of the pool.
        settings: the settings of the pool.
        log_path_by_rank: the files with the whole output; a rank may be absent.
        scope: names the pool in the ids of displays.
        out: the value of ``--out``.
        began_at: the time of its beginning, as text for the reader.
    """

    cell: int
    run_id: str
    ranks: RankSet
    world_size: int
    settings: Settings
    log_path_by_rank: Mapping[Rank, str]
    scope: str
    out: AnyOut
    began_at: str


@dataclass(frozen=True)
class KeptCard:
    """A card that was shown, as a MIME bundle."""

    card_id: str
    data: Mapping[str, str]


@dataclass(frozen=True)
class End:
    """The end of a cell.

    Attributes:
        elapsed_s: seconds until the last rank had ended.
        ok: ranks on which the cell ended without an exception.
        raised: ranks that raised.
        freed: ranks that waited for others, and were freed.
        interrupted: ranks that the user, or the timeout, interrupted.
        exited: ranks whose process ended.
        unfinished: ranks that had not ended when the wait for them did.
        goes_on: whether these went on without this notebook.
        error: the text of the cell's error, with ANSI colours; empty: there is none.
        traceback_by_rank: the traceback of each rank that raised, with ANSI colours.
    """

    elapsed_s: float
    ok: RankSet
    raised: RankSet
    freed: RankSet
    interrupted: RankSet
    exited: RankSet
    unfinished: RankSet
    error: str
    traceback_by_rank: Mapping[Rank, str]
    goes_on: bool = False


KeptEvent = CellEvent | KeptCard


@dataclass
class _Dropped:
    """The output of a rank that is no longer kept."""

    chars: int = 0
    displays: int = 0


@dataclass
class KeptOutput:
    """The events of one cell, within a limit of memory.

    An output that its rank has cleared is not kept, as the notebook does not show it either.

    Args:
        source: the cell.
        max_bytes: the limit; the oldest events beyond it are dropped and counted.
    """

    source: Source
    max_bytes: int = MAX_CELL_BYTES
    end: End | None = None  #: None: the cell is running
    _events: deque[tuple[KeptEvent, int]] = field(default_factory=deque)
    _kept_bytes: int = 0
    _dropped: dict[Rank, _Dropped] = field(default_factory=dict)
    #: Ranks whose output so far goes with their next one: ``clear_output(wait=True)``.
    _to_clear: set[Rank] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, event: KeptEvent) -> None:
        """Keep an event, if it says what a rank printed, or that it has ended."""
        if isinstance(event, RunFinished):  # the end of the cell has its error
            event = msgspec.structs.replace(event, error=None, mismatches=(), marks=())
        if not isinstance(event, _Printed | RunFinished | RankExited | KeptCard):
            return
        with self._lock:
            if isinstance(event, KeptCard):
                self._remove_card(event.card_id)
            if isinstance(event, _Printed):
                self._clear_before(event)
            size = _size(event)
            self._events.append((event, size))
            self._kept_bytes += size
            while self._kept_bytes > self.max_bytes:
                self._drop_oldest()

    def close(self, outcome: RunOutcome) -> None:
        """Note how the cell has ended."""
        source = self.source
        error = cell_error(outcome, cell_name(source.cell), source.log_path_by_rank)
        freed, interrupted = freed_ranks(outcome)
        self.end = End(
            elapsed_s=outcome.elapsed_s,
            ok=outcome.ranks("ok"),
            raised=outcome.ranks("error") - freed - interrupted,
            freed=freed,
            interrupted=interrupted,
            exited=outcome.ranks("exited"),
            unfinished=outcome.ranks("unfinished"),
            error="" if error is None else "\n".join(error._render_traceback_()),
            traceback_by_rank={
                rank: "\n".join(result.error.traceback)
                for rank, result in outcome.results.items()
                if result.error is not None
            },
            goes_on=outcome.goes_on,
        )

    def events(self, ranks: RankSet) -> list[KeptEvent]:
        """The events of these ranks, in order; the card about all ranks is left out of fewer."""
        is_whole = ranks == self.source.ranks
        with self._lock:
            return [
                event
                for event, _ in self._events
                if (is_whole if isinstance(event, KeptCard) else _rank(event) in ranks)
            ]

    def dropped(self, ranks: RankSet) -> dict[Rank, tuple[int, int]]:
        """Return the output that is not kept: by rank, the numbers of characters and displays."""
        with self._lock:
            return {
                rank: (dropped.chars, dropped.displays)
                for rank, dropped in sorted(self._dropped.items())
                if rank in ranks
            }

    def _clear_before(self, event: _Printed) -> None:
        rank = event.rank
        if isinstance(event, ClearOutput) and event.wait:
            self._to_clear.add(rank)
            return
        is_update = isinstance(event, Display) and event.update
        if not isinstance(event, ClearOutput) and (rank not in self._to_clear or is_update):
            return
        self._to_clear.discard(rank)
        self._dropped.pop(rank, None)
        last_clear = None
        kept: deque[tuple[KeptEvent, int]] = deque()
        for entry in self._events:
            if not (isinstance(entry[0], _Printed) and entry[0].rank == rank):
                kept.append(entry)
            elif isinstance(entry[0], ClearOutput):
                last_clear = entry  # the output is in slots from the first one on
        if last_clear is not None:
            kept.append(last_clear)
        self._events = kept
        self._kept_bytes = sum(size for _, size in kept)

    def _remove_card(self, card_id: str) -> None:
        for entry in self._events:
            if isinstance(entry[0], KeptCard) and entry[0].card_id == card_id:
                self._events.remove(entry)
                self._kept_bytes -= entry[1]
                return

    def _drop_oldest(self) -> None:
        event, size = self._events.popleft()
        self._kept_bytes -= size
        if isinstance(event, Output):
            self._dropped.setdefault(event.rank, _Dropped()).chars += len(event.text)
        elif isinstance(event, Display | Result):
            self._dropped.setdefault(event.rank, _Dropped()).displays += 1


class KeptOutputs:
    """The outputs of the last cells, by the number of the cell."""

    def __init__(self, max_cells: int = MAX_CELLS) -> None:
        self._max_cells = max_cells
        self._by_cell: dict[int, KeptOutput] = {}

    def begin(self, source: Source) -> KeptOutput:
        """Begin with the output of a cell; it replaces that of an earlier cell of this number."""
        self._by_cell.pop(source.cell, None)
        self._by_cell[source.cell] = KeptOutput(source)
        if len(self._by_cell) > self._max_cells:
            del self._by_cell[next(iter(self._by_cell))]
        return self._by_cell[source.cell]

    @property
    def cells(self) -> list[int]:
        """The numbers of the cells, the last one at the end."""
        return list(self._by_cell)

    def get(self, cell: int) -> KeptOutput | None:
        """The output of a cell; None: it is not kept."""
        return self._by_cell.get(cell)


def _rank(event: KeptEvent) -> Rank:
    rank: Rank = getattr(event, "rank", -1)
    return rank


def _size(event: KeptEvent) -> int:
    if isinstance(event, Output):
        return _EVENT_BYTES + len(event.text)
    if isinstance(event, KeptCard | Display | Result):
        data = event.data.values()
        return _EVENT_BYTES + sum(len(v) if isinstance(v, str | bytes) else 100 for v in data)
    return _EVENT_BYTES
