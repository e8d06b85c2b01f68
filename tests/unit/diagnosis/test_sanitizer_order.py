"""What sanitizers saw in a cell is told in the order in which it happened."""

import msgspec
import pytest

from nbddp.controller.diagnosis import Finding
from nbddp.wire.flight_recorder import SanitizerFinding, SanitizerFindingKind, SanitizerReport
from tests.support.looks import CELL, Ranks, site


def fault(
    pool: Ranks, rank: int, kind: SanitizerFindingKind, line: int, at: int
) -> SanitizerFinding:
    record = pool[rank].done(line=line)
    operation = pool[rank].operations[record - 1]
    return SanitizerFinding(
        kind=kind, operation=operation, site=site(line + 1), value="NaN", time_ns=at
    )


def test_the_wait_and_the_use_may_stand_in_one_line():
    pool = Ranks(1)
    use = fault(pool, 0, "write", line=7, at=300)
    same = msgspec.structs.replace(use, site=use.operation.site)
    result = msgspec.structs.replace(use, needs_result=True)
    for seen, step in (
        (result, "Call `wait()` on what line 7 returns before line 8."),
        (use, "Call `wait()` on what line 7 returns before line 8, or give the operation a copy."),
        (
            same,
            "Call `wait()` on what line 7 returns before the line uses the tensor again, or give "
            "the operation a copy.",
        ),
    ):
        assert next_step(pool, seen) == step


@pytest.mark.parametrize(
    ("begin", "step"),
    [
        ("for i in (1, 2):", "the handle that line 3 makes before line 2 runs again"),
        ("if rank == 0:", "the handle that line 3 makes before line 2"),
    ],
)
def test_a_line_above_that_uses_the_tensor_in_a_loop_runs_again(begin: str, step: str):
    kept = "handles.append(dist.isend(x, i))"
    pool = Ranks(1)
    pool.code[CELL] = f"{begin}\n    x.fill_(i)\n    {kept}\n"
    operation = pool[0].operations[pool[0].done("send", peer=1, line=3) - 1]
    operation = msgspec.structs.replace(operation, site=site(3, kept))
    use = SanitizerFinding(kind="write", operation=operation, site=site(2, "x.fill_(i)"))
    assert next_step(pool, use) == f"Call `wait()` on {step}, or give the operation a copy."


@pytest.mark.parametrize("op", ["broadcast", "reduce"])
def test_no_copy_is_advised_where_the_same_line_writes_the_tensor_on_other_ranks(op: str):
    pool = Ranks(1)
    operation = pool[0].operations[pool[0].done(op, line=7, root=0) - 1]
    use = SanitizerFinding(kind="write", operation=operation, site=site(8))
    assert next_step(pool, use) == "Call `wait()` on what line 7 returns before line 8."


@pytest.mark.parametrize(
    ("needs_result", "ending"),
    [(True, ""), (False, ", or give each operation a tensor of its own")],
)
def test_two_operations_may_have_own_tensors_unless_one_reads_the_result_of_the_other(
    needs_result: bool, ending: str
):
    pool = Ranks(1)
    use = fault(pool, 0, "overlap", line=7, at=300)
    other = pool[0].operations[pool[0].done(line=8) - 1]
    met = msgspec.structs.replace(use, other=other, needs_result=needs_result)
    step = f"Call `wait()` on what line 7 returns before line 8{ending}."
    assert next_step(pool, met) == step


def test_the_line_that_called_a_helper_with_a_nan_is_named():
    begin = "Look at what rank 0 computes before line 4"
    for callers, ending in {
        (): ".",
        (site(9),): " (called in line 9).",
        (msgspec.structs.replace(site(9), cell=7),): " (called at cell [7], line 9).",
    }.items():
        pool = Ranks(1)
        nan = fault(pool, 0, "not-finite", line=3, at=200)
        nan = msgspec.structs.replace(nan, caller=next(iter(callers), nan.caller))
        assert next_step(pool, nan) == begin + ending


def test_the_first_nan_is_told_with_its_iteration():
    pool = Ranks(1)
    operation = pool[0].operations[pool[0].done(line=3, iteration=[("step", 37)]) - 1]
    nan = SanitizerFinding(
        kind="not-finite", operation=operation, site=site(3), value="NaN", caller=site(9)
    )
    pool[0].more["sanitizer"] = SanitizerReport(findings=(nan,))
    pool[0].finished()
    (finding,) = pool.compare()
    assert finding.headline == "Rank 0 gave NaN to all_reduce at step 37 (#1)."


def test_ranks_that_called_a_helper_in_other_lines_have_no_common_caller():
    pool = Ranks(2)
    for rank in (0, 1):
        nan = fault(pool, rank, "not-finite", line=3, at=200)
        report = SanitizerReport(findings=(msgspec.structs.replace(nan, caller=site(9 + rank)),))
        pool[rank].more["sanitizer"] = report
        pool[rank].finished()
    (finding,) = pool.compare()
    assert finding.next_step == "Look at what ranks 0-1 compute before line 4."


def next_step(pool: Ranks, fault: SanitizerFinding) -> str:
    pool[0].more["sanitizer"] = SanitizerReport(findings=(fault,))
    pool[0].finished()
    (finding,) = pool.compare()
    return finding.next_step


def lines(findings: tuple[Finding, ...]) -> list[tuple[int, str]]:
    return [(finding.code[0].site.line, str(finding.culprits)) for finding in findings]


def test_findings_are_in_the_order_of_time_whatever_their_kinds_and_ranks():
    pool = Ranks(3)
    late = fault(pool, 0, "write", line=7, at=300)
    nan = fault(pool, 0, "not-finite", line=4, at=200)
    early = [fault(pool, rank, "read", line=1, at=100 + rank) for rank in (1, 2)]
    pool[0].more["sanitizer"] = SanitizerReport(findings=(late, nan))
    for rank, read in zip((1, 2), early, strict=True):
        pool[rank].more["sanitizer"] = SanitizerReport(findings=(read,))
    for state in pool:
        state.finished()
    assert lines(pool.compare()) == [(1, "1-2"), (5, "0"), (7, "0")]
