"""Replicas of a model that part: the step, the tensor and the odd rank, from hashes alone."""

from msgspec.structs import replace

from nbddp.controller.diagnosis.parted_replicas import PartedReplicas, find_parted_replicas
from nbddp.controller.diagnosis.rank_view import RankView, RankViews
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import DIGEST_BYTES, ReplicaSteps, SanitizerReport, Site


def _digest(number: int) -> bytes:
    return number.to_bytes(DIGEST_BYTES)


def steps(*rows: tuple[int, int], kept: int = 9, number: int = 1) -> ReplicaSteps:
    """A row has a number for each of two tensors; equal numbers, equal tensors."""
    details = [b"".join(map(_digest, row)) for row in rows]
    return ReplicaSteps(
        pg_id="0",
        number=number,
        optimizer_number=0,
        model="Net",
        optimizer="SGD",
        tensors=("weight", "bias"),
        digests=b"".join(_digest(hash(row) & 0xFFFF) for row in rows),
        details=b"".join(details[:kept]),
        newest=details[-1],
        buffers=(),
        states=(),
        state_digests=b"",
        settings=(),
        setting_steps=(),
        buffer_digests=b"",
        sites=(Site(line=7),),
        site_of_step=bytes(len(rows)),
    )


def found(*each: ReplicaSteps) -> list[PartedReplicas]:
    views = {
        rank: RankView(rank, "finished", sanitizer=SanitizerReport(replicas=(one,)))
        for rank, one in enumerate(each)
    }
    return find_parted_replicas(WaitForGraph(RankViews(views)))


def test_equal_replicas_are_no_finding():
    assert found(steps((1, 1), (2, 2)), steps((1, 1), (2, 2))) == []


def test_the_odd_rank_the_step_and_the_tensor():
    right = steps((1, 1), (2, 2), (3, 3))
    (parted,) = found(right, steps((1, 1), (2, 5), (6, 6)), right)
    assert str(parted.culprits) == "1"
    assert (parted.step, parted.tensor, parted.others) == (1, "bias", 0)
    assert (parted.is_late, parted.site.line) == (False, 7)


def test_a_setting_that_differs_in_the_step_is_found():
    rows = (1, 1), (2, 2)
    settings = "lr=0.1, momentum=0.9", "lr=0.2, momentum=0.9"
    right = replace(steps(*rows), settings=settings, setting_steps=(0, 1))
    odd = replace(steps(rows[0], (3, 3)), settings=settings[:1], setting_steps=(0,))
    (parted,) = found(right, odd, right)
    assert parted.setting == ("lr", {0: "0.2", 1: "0.1", 2: "0.2"})
    unknown = replace(odd, settings=("lr=0.1", ""), setting_steps=(0, 1))
    (parted,) = found(right, unknown)
    assert parted.setting is None


def test_two_ranks_have_no_majority():
    (parted,) = found(steps((1, 1)), steps((2, 2)))
    assert str(parted.culprits) == "0-1"
    assert (parted.step, parted.tensor, parted.others) == (0, "weight", 1)


def test_a_rank_with_fewer_steps_is_compared_as_far_as_it_came():
    assert found(steps((1, 1), (2, 2)), steps((1, 1))) == []


def test_the_tensor_is_that_of_the_end_where_no_more_hashes_were_kept():
    one, other = steps((1, 1), (2, 2), (3, 3), kept=1), steps((1, 1), (2, 4), (5, 3), kept=1)
    (parted,) = found(one, other)
    assert (parted.step, parted.tensor, parted.is_late) == (1, "weight", True)


def test_other_models_are_not_compared():
    assert found(steps((1, 1)), steps((2, 2), number=2)) == []
