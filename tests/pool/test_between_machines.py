"""Ranks of two simulated nodes, which cannot read each other's boards."""

import pytest

from nbddp.controller.catch_up import Reason
from nbddp.controller.pool import CellOptions, Pool
from nbddp.controller.state.actions import VerdictReached
from nbddp.errors import DeadlockError, MismatchError
from nbddp.notebook.render.diagnosis_card import card
from nbddp.wire.rank_set import NO_RANKS
from tests.support.restarted_pool import restarted_pool
from tests.support.views import RecordingView, run_cell

shared_pool = restarted_pool(1, nnodes=2)

_SHAPES = "dist.all_reduce(torch.ones(3 + rank))\n"
_DTYPES = "dist.all_reduce(torch.ones(3, dtype=torch.int32 if rank else torch.float32))\n"
_REDUCE_OPS = (
    "dist.all_reduce(torch.ones(3), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)\n"
)
_LEGAL = """
dist.all_reduce(torch.ones((2, 3) if rank else (3, 2)))
x, y = torch.arange(2.0) + 2 * rank, torch.zeros(2)
dist.all_to_all_single(y, x, *([[1, 1], [1, 1]] if rank else []))
print(y.tolist())
"""
_SPLITS = """
given, taken = ([1, 2], [1, 1]) if rank == 0 else ([1, 1], [1, 1])
dist.all_to_all_single(torch.zeros(sum(taken)), torch.ones(sum(given)), taken, given)
"""


def _run_checked(pool: Pool, code: str) -> None:
    pool.run_cell(code, CellOptions(ranks=pool.all_ranks, check=True))


def test_a_mismatch_is_seen_before_data_moves_with_check(pool: Pool):
    run_cell(pool, "x = rank")
    for code, field in ((_SHAPES, "input_sizes"), (_DTYPES, "input_dtypes")):
        with pytest.raises(MismatchError, match=f"disagree in {field}") as caught:
            _run_checked(pool, code)
        assert set(caught.value.by_rank) == {0, 1}  # each of them sees it
        report = pool.last_report
        assert report is not None
        # The error below the card says it.
        assert "Next:" not in card(report)["text/plain"]
        assert str(caught.value).count("  next      ") == 1
        view = run_cell(pool, "y = torch.ones(1); dist.all_reduce(y); print(x, y.item())")
        assert view.texts() == {0: "0 2.0\n", 1: "1 2.0\n"}


def test_a_missing_rank_is_no_hang_with_check(pool: Pool):
    with pytest.raises(DeadlockError, match="Rank 0 never called all_reduce") as caught:
        _run_checked(pool, "if rank:\n    dist.all_reduce(torch.ones(3))\n")
    assert "\n  where     rank 0 is on node 0\n" in str(caught.value)
    report = pool.last_report
    assert report is not None
    assert "Rank 0 is on node 0." in card(report)["text/plain"]
    view = run_cell(pool, "dist.barrier(); print('well')")
    assert view.texts() == {0: "well\n", 1: "well\n"}


def test_a_mismatch_that_did_not_hang_is_an_error_afterwards_without_check(
    pool: Pool,
):
    for code, field in ((_DTYPES, "input_dtypes"), (_REDUCE_OPS, "reduce_op")):
        view = run_cell(pool, code, check=False)
        assert isinstance(view.error, MismatchError)
        assert "that does not hang, but the results are not what was meant" in str(view.error)
        report = pool.last_report
        assert report is not None
        (finding,) = report.findings
        assert (finding.kind, finding.fields) == ("silent-mismatch", (field,))
    pool.configure(on_mismatch="warn")
    view = run_cell(pool, _REDUCE_OPS)
    assert any(isinstance(event, VerdictReached) for event in view.events)


_MESSAGE = "t = torch.ones(2) * (rank + 1)\nif rank == 0: dist.send(t, 1)\nelse: {}"


def test_a_message_that_does_not_match_is_an_error_after_the_cell(pool: Pool):
    """If ``recv`` has fewer bytes than ``send``, Gloo ends its process."""
    part = "only the first 8 of the {} bytes of the tensor of rank 1 were written"
    for receives, result in (
        (
            "t = torch.zeros(2, dtype=torch.int32); dist.recv(t, 0)",
            "the tensor of rank 1 holds the bytes of float32 as int32",
        ),
        ("t = torch.zeros(2, dtype=torch.float64); dist.recv(t, 0)", part.format(16)),
        ("t = torch.zeros(3); dist.recv(t, 0)", part.format(12)),
        ("t = torch.zeros(3); dist.irecv(t, 0).wait()", part.format(12)),
    ):
        view = run_cell(pool, _MESSAGE.format(receives) + "\ndist.barrier()", check=False)
        assert isinstance(view.error, MismatchError)
        assert f"but {result}" in str(view.error)
        report = pool.last_report
        assert report is not None
        (finding,) = report.findings
        assert (finding.kind, finding.op) == ("silent-mismatch", "send")
    with pytest.raises(MismatchError, match="as the two ends of one message"):
        _run_checked(pool, _MESSAGE.format("t = torch.zeros(3); dist.recv(t, 0)"))
    # The send is of an earlier cell than the receive.
    run_cell(pool, "if rank == 0: work = dist.isend(torch.ones(2), 1)")
    view = run_cell(pool, "if rank: dist.recv(torch.zeros(3), 0)\nelse: work.wait()", check=False)
    assert isinstance(view.error, MismatchError)


def test_a_cell_with_a_message_that_does_not_match_is_not_run_again_by_a_catch_up(pool: Pool):
    run_cell(pool, "v = rank", execution_count=3)
    cell = _MESSAGE.format("t = torch.zeros(3); dist.recv(t, 0)")
    run_cell(pool, cell, check=False, execution_count=4)
    pool.restart(1)
    result = pool.catch_up()
    assert (result.regained, result.failed, result.aside) == (("v",), (), NO_RANKS)
    assert [(left.names, left.reason) for left in result.left_out] == [(("t",), Reason.FAILED)]
    # A cell that is named runs in any case.
    ((number, error),) = pool.catch_up(1, cells=[4]).failed
    assert number == 4
    assert error.startswith("MismatchError: Rank 0 called send of float32[2], rank 1 called recv")


def test_messages_that_match_are_told_by_nothing(pool: Pool):
    for code in (
        _MESSAGE.format("dist.recv(t, 0)"),
        _MESSAGE.format("dist.recv(t.view(2, 1), 0)"),
        _MESSAGE.format("dist.recv(t)"),
        "if rank == 0: work = dist.isend(torch.ones(2), 1)",
        "if rank == 0: work.wait()\nelse: dist.recv(torch.zeros(2), 0)",
        "given = [rank, 'a' * 100 * (rank + 1)]\n"
        "if rank == 0: dist.send_object_list(given, 1)\nelse: dist.recv_object_list(given, 0)",
        "for n in (1, 2, 3):\n    t = torch.ones(n)\n"
        "    if rank == 0: dist.send(t, 1, tag=n)\n    else: dist.recv(t, 0, tag=n)",
        "t, u = torch.ones(2), torch.zeros(3)\nops = [dist.P2POp(dist.isend, t, 1), "
        "dist.P2POp(dist.irecv, u, 1)] if rank == 0 else [dist.P2POp(dist.irecv, t, 0), "
        "dist.P2POp(dist.isend, u, 0)]\nfor w in dist.batch_isend_irecv(ops): w.wait()",
    ):
        view = run_cell(pool, code)
        assert not any(isinstance(event, VerdictReached) for event in view.events), code


@pytest.mark.fresh_ranks(2, nnodes=2)
def test_ranks_on_which_a_mismatched_call_has_ended_are_told_that_their_tensors_are_wrong(
    pool: Pool,
):
    code = "b = torch.ones(4 if rank < 2 else 3) * 10**rank\ndist.all_reduce(b)"
    view = run_cell(pool, code, check=False)
    shown = run_cell(pool, "print(b[-1].item())").texts()
    report = pool.last_report
    assert report is not None
    (finding,) = report.findings
    assert shown[0] == "1.0\n"  # put back
    assert finding.written
    assert set(finding.written) == {r for r, text in shown.items() if text != f"{10.0**r}\n"}
    ranks = finding.written.describe()
    assert f"\n  except    the tensors that the call writes on {ranks}: " in str(view.error)
    text = " ".join(card(report, acted=True)["text/plain"].split())
    assert f"they have ended on {ranks}, and can never complete on" in text
    assert f"On {ranks} the call had ended before this was found" in text
    assert f"Now: {report.stuck.describe()} are freed" in text


def test_legal_differences_are_no_error_with_or_without_check(pool: Pool):
    """Shapes with equally many elements; an exchange in which only one rank names its splits."""
    for check in (False, True):
        options = CellOptions(ranks=pool.all_ranks, check=check)
        outcome = pool.wait(pool.submit(_LEGAL, options), view := RecordingView())
        assert pool.error_of(outcome) is None
        assert view.texts() == {0: "[0.0, 2.0]\n", 1: "[1.0, 3.0]\n"}


def test_splits_that_do_not_fit_are_seen_with_check(pool: Pool):
    with pytest.raises(MismatchError, match="disagree in input_splits"):
        _run_checked(pool, _SPLITS)
