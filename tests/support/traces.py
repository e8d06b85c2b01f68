"""Operations as ranks would have recorded them, for tests of what is made of them."""

from typing import Any

from nbddp.wire.flight_recorder.schema import GroupInfo, Operation, Signature, Site

MS = 1_000_000
WORLD = GroupInfo(pg_id="0/0-3", name="0", desc="default_pg", ranks=(0, 1, 2, 3), backend="gloo")
GROUPS = {WORLD.pg_id: WORLD}
LINE = Site(
    file="<ipython-input-4-ab>", line=6, function="<module>", source="dist.all_reduce(x)", cell=4
)


class Recorder:
    """Numbers the operations of one rank, as its recorder does."""

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
        **fields: Any,
    ) -> Operation:
        """Times are milliseconds; ``waited`` is the whole time unless told otherwise."""
        number = self._next(group.pg_id)
        signature = Signature(kind="collective", op=op, nbytes=nbytes, tensors=1)
        return self._add(
            signature, at, end, waited, pg_id=group.pg_id, collective_seq_id=number, **fields
        )

    def message(
        self,
        kind: Any,
        peer: int,
        *,
        at: float,
        end: float | None = None,
        waited: float | None = None,
        tag: int = 0,
        group: GroupInfo = WORLD,
        **fields: Any,
    ) -> Operation:
        """A send or recv."""
        number = self._next(kind, group.pg_id, peer, tag)
        signature = Signature(kind=kind, op=kind, nbytes=800, tensors=1)
        return self._add(
            signature,
            at,
            end,
            waited,
            pg_id=group.pg_id,
            p2p_seq_id=number,
            peer=peer,
            tag=tag,
            **fields,
        )

    def other(
        self, kind: Any, op: str, *, at: float, end: float | None = None, **fields: Any
    ) -> Operation:
        """A creation or a wait for the store."""
        keys = fields.pop("keys", ())
        return self._add(Signature(kind=kind, op=op, keys=keys), at, end, None, **fields)

    def _next(self, *counted: Any) -> int:
        self._numbers[counted] = self._numbers.get(counted, 0) + 1
        return self._numbers[counted]

    def _add(
        self,
        signature: Signature,
        at: float,
        end: float | None,
        waited: float | None,
        **fields: Any,
    ) -> Operation:
        whole = 0 if end is None else end - at
        made: dict[str, Any] = {
            "state": "scheduled" if end is None else "completed",
            "site": LINE,
            "run_id": "run-4",
            "pg_id": "",
            **fields,
        }
        operation = Operation(
            record_id=len(self.operations) + 1,
            signature=signature,
            time_created_ns=round(at * MS),
            time_completed_ns=0 if end is None else round(end * MS),
            waited_ns=round((whole if waited is None else waited) * MS),
            **made,
        )
        self.operations.append(operation)
        return operation


def recorders(count: int) -> list[Recorder]:
    """One for each rank."""
    return [Recorder(rank) for rank in range(count)]


def by_rank(made: list[Recorder]) -> dict[int, list[Operation]]:
    """What `nbddp.controller.trace.rows.rows` takes."""
    return {recorder.rank: recorder.operations for recorder in made}
