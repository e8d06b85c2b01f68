"""The facts and events that an agent keeps for a hub that takes the pool back.

Runs in: the agent's thread. Pure.

    events of ranks --note--> KeptState --> `AgentAttached`, then the events of the last cell

The hub of a notebook that was killed leaves nothing behind, so a new one learns all that it has to
know from here. Of a cell whose end the notebook has seen (`SettleRun`) nothing is kept. The text of
a cell is kept in every pool: ``%ddp detach`` may let go of one that has no ``--keep``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from nbddp.errors import BadMessageError
from nbddp.wire import codec
from nbddp.wire.message_types import KeptRank, PoolSpec
from nbddp.wire.messages import (
    Event,
    Execute,
    GroupsRebuilt,
    InputReply,
    InputRequest,
    Output,
    RankExited,
    RankReady,
    RankSpawned,
    RunFinished,
    StartRanks,
    StoreExited,
    Stream,
)

#: Of the text and displays of the last cell; the logs have all text.
KEPT_BYTES = 4 * 1024 * 1024
#: Events that a notebook shows. If there are too many, the oldest are left out.
_SHOWN = frozenset({"Output", "Display", "Result", "ClearOutput"})
#: Events of a cell that are always kept: without them a new hub does not know how the cell ended.
_VITAL = frozenset({"RunStarted", "RunFinished", "FaultStruck", "InputRequest"})
#: Events that are decoded for the facts in them.
_FACTS = frozenset({"RankReady", "RunFinished", "InputRequest", "GroupsRebuilt"})


class _Entry:
    """An event that is kept, encoded."""

    __slots__ = ("at", "frames", "key", "rank", "size")

    def __init__(self, frames: list[bytes], rank: int, key: tuple[str, int], at: float) -> None:
        self.at = at  #: the time of the event, if it is of the agent itself
        self.frames = frames
        self.rank = rank
        self.key = key  #: its type, and the number of a question
        self.size = sum(map(len, frames))


class KeptState:
    """Facts about the ranks of a node, and the events of their last cell.

    Args:
        node: number of the node.
    """

    def __init__(self, node: int) -> None:
        self._node = node
        self._reset()

    def _reset(self) -> None:
        self.start: StartRanks | None = None  #: the first request since all ranks were ended
        self.run: Execute | None = None  #: the last cell; None: its end was settled
        self.run_began = 0.0
        self.store_is_lost = False
        self._facts: dict[int, KeptRank] = {}
        self._left: set[int] = set()  #: ranks of this node that have left the last cell
        self._entries: dict[int, _Entry] = {}  # by number, in order
        self._next = 0
        self._shown_bytes = 0
        self._dropped: Counter[tuple[int, Stream]] = Counter()

    # --- requests ------------------------------------------------------------------------------

    def begin_start(self, request: StartRanks) -> None:
        """Note that ranks are started: all of the node, or some in the place of others."""
        if not request.ranks:
            self._reset()
        self.start = request if self.start is None else self.start
        for rank in request.ranks:
            self._begin_rank(rank, request)

    def _begin_rank(self, rank: int, request: StartRanks) -> None:
        known = self._facts.get(rank)
        self._facts[rank] = KeptRank(
            rank=rank,
            pid=0,
            joins=request.joins,
            is_replacement=True,
            backend=known.backend if known else "",
        )
        self._left.discard(rank)
        self._forget(lambda entry: entry.rank == rank and entry.key[0] == "RankExited")

    def begin_cell(self, execute: Execute, now: float) -> None:
        """Note the cell that is sent to the ranks; nothing of the one before it is needed."""
        if self.run is not None and self.run.run_id == execute.run_id:
            return
        self._settle()
        self.run, self.run_began = execute, now

    def settle(self, run_id: str) -> None:
        """Forget a cell whose end the notebook has seen."""
        if self.run is not None and self.run.run_id == run_id:
            self._settle()

    def answer(self, reply: InputReply, ranks: Iterable[int]) -> None:
        """Forget a question that was answered."""
        key, answered = (InputRequest.__name__, reply.question), set(ranks)
        self._forget(lambda entry: entry.rank in answered and entry.key == key)

    # --- events --------------------------------------------------------------------------------

    def note(self, event: Event, run_id: str | None, now: float, *, is_detached: bool) -> None:
        """Note an event of the agent itself.

        Args:
            event: on its way to the hub.
            run_id: the cell of its rank.
            now: the time, as in `begin_cell`.
            is_detached: no hub gets it.
        """
        kind = type(event).__name__
        match event:
            case RankSpawned(rank=rank):
                known = self._facts.get(rank) or KeptRank(rank=rank, pid=0)
                self._facts[rank] = replace(known, pid=event.pid, log_path=event.log_path)
            case RankExited(rank=rank):
                if self.run is not None and run_id == self.run.run_id:
                    self._left.add(rank)
                self._add(codec.encode(event), rank, (kind, 0), at=now)
            case StoreExited():
                self.store_is_lost = True
            case Output(rank=rank):
                if self._is_wanted(kind, event.run_id, is_detached=is_detached):
                    self._add(codec.encode(event), rank, (kind, 0))
            case _:
                pass

    def note_of_rank(
        self,
        tag: codec.Tag,
        rank: int,
        frames: list[bytes],
        run_id: str | None,
        *,
        is_detached: bool,
    ) -> None:
        """Note an encoded event of a rank; see `note`."""
        number = 0
        if tag.type in _FACTS:
            try:
                event = codec.decode_event(frames[0])
            except BadMessageError:
                return
            number = self._note_fact(event)
            run_id = getattr(event, "run_id", run_id)
        if self._is_wanted(tag.type, run_id, is_detached=is_detached):
            self._add(frames[0], rank, (tag.type, number), frames)

    def _note_fact(self, event: Event) -> int:
        match event:
            case RankReady(rank=rank):
                known = self._facts.get(rank) or KeptRank(rank=rank, pid=event.pid)
                self._facts[rank] = replace(
                    known,
                    is_ready=True,
                    device=event.device,
                    backend=event.backend or known.backend,
                    note=event.note,
                )
            case RunFinished(rank=rank):
                if self.run is not None and event.run_id == self.run.run_id:
                    self._left.add(rank)
                if event.meshes is not None and rank in self._facts:
                    self._facts[rank] = replace(self._facts[rank], meshes=event.meshes)
            case GroupsRebuilt(rank=rank) if event.error is None and rank in self._facts:
                self._facts[rank] = replace(self._facts[rank], joins=False)
            case InputRequest():
                return event.question
            case _:
                pass
        return 0

    def _is_wanted(self, kind: str, run_id: str | None, *, is_detached: bool) -> bool:
        is_of_cell = self.run is not None and run_id == self.run.run_id
        if kind in _VITAL:
            return is_of_cell
        return kind in _SHOWN and (is_of_cell or is_detached)

    # --- for a new hub -------------------------------------------------------------------------

    @property
    def pool(self) -> PoolSpec | None:
        """The pool, once its ranks were started."""
        return None if self.start is None else self.start.pool

    @property
    def is_up(self) -> bool:
        """Whether all ranks of the node have been ready: before that there is nothing to keep."""
        pool = self.pool
        if pool is None:
            return False
        first = self._node * pool.nproc_per_node
        ranks = range(first, first + pool.nproc_per_node)
        known = [self._facts.get(rank) for rank in ranks]
        return all(fact is not None and (fact.is_ready or fact.is_replacement) for fact in known)

    def ranks(self, run_id_by_rank: Mapping[int, str | None]) -> tuple[KeptRank, ...]:
        """Return the ranks, as they were before the events of `replay`.

        Args:
            run_id_by_rank: the living ranks, and the cells that they are in.
        """
        run_id = None if self.run is None else self.run.run_id
        ended = {entry.rank for entry in self._entries.values() if entry.key[0] == "RankExited"}
        facts = []
        for rank, fact in sorted(self._facts.items()):
            inside = run_id if rank in self._left else run_id_by_rank.get(rank)
            is_known = rank in run_id_by_rank or rank in ended
            facts.append(replace(fact, run_id=inside, pid=fact.pid if is_known else 0))
        return tuple(facts)

    def replay(self, now: float) -> list[list[bytes]]:
        """Return the kept events, in order. Those that belong to no cell are given once only."""
        lost = [
            Output(run_id=self._run_id, rank=rank, stream=stream, text="", dropped_bytes=count)
            for (rank, stream), count in sorted(self._dropped.items())
        ]
        events = [[codec.encode(output)] for output in lost]
        events += [_with_age(entry, now) for entry in self._entries.values()]
        if self.run is None:
            self._forget(lambda entry: entry.key[0] in _SHOWN)
        return events

    @property
    def _run_id(self) -> str | None:
        return None if self.run is None else self.run.run_id

    # --- entries -------------------------------------------------------------------------------

    def _add(
        self,
        payload: bytes,
        rank: int,
        key: tuple[str, int],
        frames: list[bytes] | None = None,
        *,
        at: float = 0.0,
    ) -> None:
        entry = _Entry(frames or [payload], rank, key, at)
        self._entries[self._next] = entry
        self._next += 1
        if key[0] in _SHOWN:
            self._shown_bytes += entry.size
            if self._shown_bytes > KEPT_BYTES:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Leave out text and displays until three quarters of the room are used."""
        for number, entry in list(self._entries.items()):
            if self._shown_bytes <= KEPT_BYTES * 3 // 4:
                return
            if entry.key[0] not in _SHOWN:
                continue
            del self._entries[number]
            self._shown_bytes -= entry.size
            if entry.key[0] == "Output":
                output = codec.decode_event(entry.frames[0])
                if isinstance(output, Output):
                    self._dropped[output.rank, output.stream] += (
                        len(output.text) + output.dropped_bytes
                    )

    def _forget(self, is_over: Callable[[_Entry], bool]) -> None:
        for number, entry in list(self._entries.items()):
            if is_over(entry):
                del self._entries[number]
                self._shown_bytes -= entry.size if entry.key[0] in _SHOWN else 0

    def _settle(self) -> None:
        self.run = None
        self._left.clear()
        self._dropped.clear()
        self._forget(lambda entry: entry.key[0] != "RankExited")


def _with_age(entry: _Entry, now: float) -> list[bytes]:
    """Return the event of an entry; the new hub has not seen when a rank has ended."""
    if entry.key[0] != RankExited.__name__:
        return entry.frames
    exited = codec.decode_event(entry.frames[0])
    assert isinstance(exited, RankExited)  # noqa: S101 - its key says so
    return [codec.encode(replace(exited, age_s=max(0.0, now - entry.at)))]
