"""An operation that a rank is about to issue.

Runs in: the rank process, any thread.
"""

from collections.abc import Sequence

from nbddp.wire.flight_recorder import LoopVariable, Operation, Signature, Site
from nbddp.wire.flight_recorder.matching import MESSAGES


def upcoming_operation(
    pg_id: str,
    seq: int,
    signature: Signature,
    peer: int,
    tag: int,
    *,
    site: Site = Site(),  # noqa: B008 - it is frozen
    iteration: Sequence[LoopVariable] = (),
) -> Operation:
    """Describe an operation that has no record yet.

    Args:
        pg_id: its group.
        seq: number of the last collective there.
        signature: its kind, shapes, dtypes.
        peer: of a message: the other rank.
        tag: of a message.
        site: the line that calls it.
        iteration: of the loops around that line.
    """
    is_message = signature.kind in MESSAGES
    return Operation(
        record_id=0,
        pg_id=pg_id,
        signature=signature,
        state="scheduled",
        collective_seq_id=0 if is_message else seq + 1,
        peer=peer,
        tag=tag,
        site=site,
        iteration=tuple(iteration),
    )
