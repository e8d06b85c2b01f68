"""Calls that do not match and have ended on some ranks: their tensors are written there."""

from nbddp.controller.cell_errors import evidence
from nbddp.notebook.render import diagnosis_card
from nbddp.wire.flight_recorder.schema import Failure
from nbddp.wire.rank_set import RankSet
from tests.support.cell_errors import cell_error, freed, ok
from tests.support.looks import Ranks


def test_ranks_on_which_the_call_has_ended_are_named():
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


def test_calls_that_ended_on_no_rank_are_not_said_to_wait_on_all_of_them():
    """With [3], [3] and [5] elements two ranks of Gloo end, with wrong sums, and one waits."""
    pool = Ranks(3)
    for rank, size in enumerate((3, 3, 5)):
        pool[rank].blocked("all_reduce", input_sizes=((size,),))
    (finding,) = pool.diagnose().findings
    assert finding.reason == (
        "these calls belong together and do not match, so they cannot all end well: without nbddp "
        "some ranks would wait for a timeout, abort, or end with wrong values."
    )


def test_the_source_of_a_broadcast_that_has_ended_keeps_its_values():
    pool = Ranks(2)
    pool[0].done("broadcast", root=0)
    pool[0].finished()
    pool[1].blocked("all_reduce")
    (finding,) = pool.diagnose().findings
    assert not finding.written
    assert "they have ended on rank 0, and can never complete on rank 1" in finding.reason


def test_a_receiver_of_a_broadcast_that_has_ended_may_have_the_right_values():
    """Its call agrees with that of the root, and needed nothing of the rank that came later."""
    pool = Ranks(3)
    pool[0].blocked("broadcast", root=0)
    pool[1].blocked("broadcast", root=0, input_sizes=((3,),))
    pool[2].done("broadcast", root=0)
    pool[2].finished()
    report = pool.diagnose()
    (finding,) = report.findings
    assert finding.written == RankSet.of([2])
    card = " ".join(diagnosis_card.card(report)["text/plain"].split())
    assert (
        "On rank 2 the call had ended before this was found: it has written its tensors there, "
        "perhaps with wrong values."
    ) in card
    (line,) = evidence.wrong_results([finding])
    assert "they have new values, perhaps wrong ones" in line.plain


def test_ranks_that_refused_their_calls_have_sent_nothing_while_others_have():
    """Rank 1 had received before rank 2 called with other strides."""
    pool = Ranks(3)
    pool[0].blocked("broadcast", root=0)
    pool[1].done("broadcast", root=0)
    pool[1].finished()
    refused = Failure("collective", "CollectiveMismatchError: ...")
    late = pool[2].issue("broadcast", root=0, strides=((1, 2),), state="failed", failure=refused)
    pool[2].more["mismatches"] = (pool[2].saw(late, pool[0], 1, "strides"),)
    pool[2].raised("CollectiveMismatchError: ...")
    (finding,) = pool.diagnose().findings
    assert finding.reason == (
        "these calls belong together and do not match, so their results would be wrong; rank 2 "
        "sent nothing."
    )


def test_a_rank_that_has_ended_in_its_call_is_among_those_that_called():
    """A fresh process is starting in its place."""
    pool = Ranks(3)
    pool[0].blocked("all_gather")
    pool[1].blocked("all_gather", input_sizes=((6,),))
    call = pool[2].issue("all_gather")
    pool[2].dead("SIGABRT (signal 6)").state = "starting"
    assert call
    finding = next(f for f in pool.diagnose().findings if f.kind == "mismatched-collective")
    assert "ranks 0,2 called all_gather of float32[4]" in finding.headline
    assert "starting" not in str(finding.ranks[2])


def test_ranks_whose_tensors_a_reduce_may_have_used_are_named_in_a_deadlock():
    """Gloo adds up in the tensors of ranks that are not the root, also where the call ends well."""
    pool = Ranks(4)
    pool[0].finished()
    pool[1].blocked("reduce", root=0)
    for rank in (2, 3):
        pool[rank].done("reduce", root=0)
        pool[rank].finished()
    report = pool.diagnose()
    (finding,) = report.findings
    assert (finding.kind, finding.scratch) == ("missing-rank", RankSet.of([2, 3]))
    assert finding.to_dict()["scratch"] == [2, 3]
    card = " ".join(diagnosis_card.card(report, acted=True)["text/plain"].split())
    assert (
        "On ranks 2-3 reduce had ended: their tensors may hold partial sums, as torch leaves them "
        "on ranks that are not the root." in card
    )
    error = cell_error(freed(1), *map(ok, (0, 2, 3)), report=report, is_plain=False)
    assert (
        "  except    the tensors of reduce on ranks 2-3: it had ended there, and torch may "
        "leave partial sums on ranks that are not the root"
    ) in str(error)


def test_ranks_whose_tensors_a_reduce_may_have_used_are_named_in_a_mismatch():
    pool = Ranks(4)
    for rank in (0, 1, 3):
        pool[rank].done("reduce", root=0 if rank < 2 else 2)
        pool[rank].finished()
    pool[2].blocked("reduce", root=2)
    report = pool.diagnose()
    (finding,) = report.findings
    assert (finding.written, finding.scratch) == (RankSet.of([0]), RankSet.of([1, 3]))
    card = " ".join(diagnosis_card.card(report)["text/plain"].split())
    assert "On rank 0 the call had ended before this was found" in card
    assert "On ranks 1,3 reduce had ended: their tensors may hold partial sums" in card
    text = str(cell_error(freed(2), *map(ok, (0, 1, 3)), report=report, is_plain=False))
    assert "except    the tensors that the call writes on rank 0" in text
    assert "except    the tensors of reduce on ranks 1,3" in text


def test_the_source_of_a_broadcast_and_a_rank_inside_a_reduce_are_no_scratch():
    pool = Ranks(3)
    pool[0].finished()
    pool[1].blocked("reduce", root=0)
    pool[2].blocked("reduce", root=0)
    (finding,) = pool.diagnose().findings
    assert not finding.scratch  # put back
    pool = Ranks(3)
    pool[0].done("broadcast", root=0)
    pool[0].finished()
    pool[1].blocked("broadcast", root=0)
    pool[2].finished()
    (finding,) = pool.diagnose().findings
    assert not finding.scratch
