"""Calls that do not match and have ended on some ranks: their tensors have wrong values there."""

from nbddp.wire.rank_set import RankSet
from tests.support.looks import Ranks


def test_ranks_on_which_the_call_has_ended_have_wrong_values():
    pool = Ranks(4)
    for rank in range(4):
        if rank < 2:
            pool[rank].blocked("all_reduce", input_sizes=((4,),))
        else:
            pool[rank].done("all_reduce", input_sizes=((3,),))
            pool[rank].finished()
    (finding,) = pool.diagnose().findings
    assert finding.written == RankSet.of([2, 3])
    assert finding.to_dict()["written"] == [2, 3]
    assert finding.reason == (
        "these calls belong together and do not match: they have ended on ranks 2-3, and can "
        "never complete on ranks 0-1."
    )


def test_the_source_of_a_broadcast_that_has_ended_keeps_its_values():
    pool = Ranks(2)
    pool[0].done("broadcast", root=0)
    pool[0].finished()
    pool[1].blocked("all_reduce")
    (finding,) = pool.diagnose().findings
    assert not finding.written
    assert "they have ended on rank 0, and can never complete on rank 1" in finding.reason
