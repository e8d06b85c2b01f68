"""Hashes of replicas by numbers, as ranks report them, and what the notebook finds in them."""

from msgspec.structs import replace

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.parted_replicas import find_parted_replicas
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.rank_view import RankView, RankViews
from nbddp.controller.diagnosis.replica_comparison import PartedReplicas
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.controller.diagnosis.words.parted_replicas import parted_replicas
from nbddp.controller.diagnosis.words.shared import Words
from nbddp.wire.flight_recorder import HASH_BYTES, ReplicaSteps, SanitizerReport, Site, StepStart
from nbddp.wire.rank_set import NO_RANKS


def digest(number: int) -> bytes:
    """A hash that is this number."""
    return number.to_bytes(HASH_BYTES)


def steps(*rows: tuple[int, int], kept: int = 9, number: int = 1) -> ReplicaSteps:
    """A row has a number for each of two tensors; equal numbers, equal tensors."""
    details = [b"".join(map(digest, row)) for row in rows]
    digests = [digest(hash(row) & 0xFFFF) for row in rows]
    return ReplicaSteps(
        pg_id="0",
        number=number,
        optimizer_number=0,
        model="Net",
        optimizers=("SGD",),
        tensors=("weight", "bias"),
        digests=b"".join(digests),
        details=b"".join(details[:kept]),
        newest=details[-1],
        buffers=(),
        states=(),
        state_hashes=b"",
        settings=(),
        setting_steps=(),
        buffer_hashes=b"",
        sites=(Site(line=7),),
        site_of_step=bytes(len(rows)),
        starts=(StepStart(step=1, digest=digests[0], details=details[0], states=b""),),
    )


def whole(first: tuple[int, int], last: tuple[int, int]) -> ReplicaSteps:
    """All parameters, when gradients were sent first and at the end of the cell."""
    return replace(steps(first, last), optimizers=(), is_ddp=True)


def found(*each: ReplicaSteps) -> list[PartedReplicas]:
    """What is found in one report of each rank."""
    return found_in(*((one,) for one in each))


def found_in(*each: tuple[ReplicaSteps, ...]) -> list[PartedReplicas]:
    """What is found in several reports of each rank."""
    views = {
        rank: RankView(rank, "finished", sanitizer=SanitizerReport(replicas=replicas))
        for rank, replicas in enumerate(each)
    }
    return find_parted_replicas(WaitForGraph(RankViews(views)))


def words_of(parted: PartedReplicas) -> Words:
    """The words of a card about it."""
    views = {rank: RankView(rank, "finished") for rank in range(4)}
    reports = RankReports(WaitForGraph(RankViews(views)), 0, "")
    return parted_replicas(Cause("parted-replicas", NO_RANKS, NO_RANKS, parted=parted), reports)
