"""Operations as ranks record them, for tests of tables, timelines and exports."""

from typing import Any

import msgspec

from nbddp.controller.trace.rows import TraceRow, rows
from nbddp.wire.flight_recorder.layout import Text
from nbddp.wire.flight_recorder.schema import (
    Failure,
    GroupInfo,
    Operation,
    OperationKind,
    Signature,
    Site,
)
from nbddp.wire.flight_recorder.writer import NodeMemory, Writer

MS = 1_000_000
WORLD = GroupInfo.of(pg_id="0/0-3", name="0", desc="default_pg", ranks=(0, 1, 2, 3), backend="gloo")
GROUPS = {WORLD.pg_id: WORLD}
LINE = Site(
    file="<ipython-input-4-ab>", line=6, function="<module>", source="dist.all_reduce(x)", cell=4
)
RUN_ID = "run-4"
#: A record is read as soon as it is written, so one region does for all ranks.
_MEMORY = NodeMemory.create(1)
_WRITER = Writer(_MEMORY, 0)


class Recorder:
    """Numbers the operations of one rank, as its recorder does, and writes them as that does.

    Each operation is read back from a real record: it has nothing that a real one cannot have.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.operations: list[Operation] = []
        self._numbers: dict[tuple[Any, ...], int] = {}

    def collective(
        self,
        op: str = "all_reduce",
        *,
        at: float,
        end: float | None = None,
        waited: float | None = None,
        nbytes: int = 4000,
        group: GroupInfo = WORLD,
        async_op: bool = False,
        site: Site = LINE,
        run_id: str = RUN_ID,
        failure: Failure | None = None,
    ) -> Operation:
        """Times are milliseconds; ``waited`` is the whole time unless told otherwise.

        With a ``failure`` it has failed.
        """
        seq = self._next(group.pg_id)
        signature = Signature(kind="collective", op=op, nbytes=nbytes, tensors=1)
        return self._add(
            signature, (at, end, waited), group, seq=seq, async_op=async_op, site=site,
            run_id=run_id, failure=failure,
        )  # fmt: skip

    def message(
        self,
        kind: OperationKind,
        peer: int,
        *,
        at: float,
        end: float | None = None,
        tag: int = 0,
        group: GroupInfo = WORLD,
        run_id: str = RUN_ID,
    ) -> Operation:
        """A send or recv."""
        number = self._next(kind, group.pg_id, peer, tag)
        signature = Signature(kind=kind, op=kind, nbytes=800, tensors=1)
        return self._add(
            signature, (at, end, None), group, p2p_seq=number, peer=peer, tag=tag, run_id=run_id
        )

    def other(
        self,
        kind: OperationKind,
        op: str,
        *,
        at: float,
        end: float | None = None,
        pg_id: str = "",
        keys: tuple[str, ...] = (),
        site: Site = LINE,
        run_id: str = RUN_ID,
    ) -> Operation:
        """A creation or a wait for the store."""
        group = GroupInfo.of(pg_id=pg_id, name="") if pg_id else None
        signature = Signature(kind=kind, op=op, keys=keys)
        return self._add(signature, (at, end, None), group, site=site, run_id=run_id)

    def _next(self, *counted: Any) -> int:
        self._numbers[counted] = self._numbers.get(counted, 0) + 1
        return self._numbers[counted]

    def _add(
        self,
        signature: Signature,
        times: tuple[float, float | None, float | None],
        group: GroupInfo | None,
        *,
        seq: int = 0,
        p2p_seq: int = 0,
        peer: int = -1,
        tag: int = 0,
        async_op: bool = False,
        site: Site = LINE,
        run_id: str = RUN_ID,
        failure: Failure | None = None,
    ) -> Operation:
        at, end, waited = times
        writer = _WRITER
        record = writer.issue(
            writer.text(signature, lambda: signature),
            writer.text(site, lambda: site),
            0 if group is None else writer.text(group, lambda: group),
            writer.text(("run", run_id), lambda: Text(run_id)),
            seq, p2p_seq, peer, tag, async_op, 0, 0, round(at * MS),
        )  # fmt: skip
        if end is not None or failure is not None:
            end = at if end is None else end
            waited = end - at if waited is None else waited
            writer.complete(record, round(end * MS), round(waited * MS), failure)
        written = _MEMORY.reader(0).operation(record)
        assert written is not None
        operation = msgspec.structs.replace(written, record_id=len(self.operations) + 1)
        self.operations.append(operation)
        return operation


def recorders(count: int) -> list[Recorder]:
    """One for each rank."""
    return [Recorder(rank) for rank in range(count)]


def by_rank(made: list[Recorder]) -> dict[int, list[Operation]]:
    """The argument of `nbddp.controller.trace.rows.rows`."""
    return {recorder.rank: recorder.operations for recorder in made}


def three_cells() -> list[TraceRow]:
    """An all_reduce of four ranks in each of cells 7 to 9, and a message in the last one."""
    ranks = recorders(4)
    for number in range(3):
        for recorder in ranks:
            recorder.collective(
                at=number * 10 + recorder.rank, end=number * 10 + 5, run_id=f"run-{number}"
            )
    ranks[0].message("send", 1, at=40, run_id="run-2")
    return rows(by_rank(ranks), GROUPS, {"run-0": 7, "run-1": 8, "run-2": 9})
