"""What sanitizers saw in a cell is told in the order in which it happened."""

import msgspec

from nbddp.controller.diagnosis import Finding
from nbddp.wire.flight_recorder import SanitizerFault, SanitizerFaultKind, SanitizerReport
from tests.support.looks import Ranks, site


def fault(pool: Ranks, rank: int, kind: SanitizerFaultKind, line: int, at: int) -> SanitizerFault:
    record = pool[rank].done(line=line)
    operation = pool[rank].operations[record - 1]
    return SanitizerFault(
        kind=kind, operation=operation, site=site(line + 1), value="NaN", time_ns=at
    )


def test_the_wait_and_the_use_may_stand_in_one_line():
    pool = Ranks(1)
    use = fault(pool, 0, "write", line=7, at=300)
    same = msgspec.structs.replace(use, site=use.operation.site)
    for seen, step in (
        (use, "Call `wait()` on what line 7 returns before line 8, or give the operation a copy."),
        (
            same,
            "Call `wait()` on what line 7 returns before the line uses the tensor again, or give "
            "the operation a copy.",
        ),
    ):
        pool[0].more["sanitizer"] = SanitizerReport(faults=(seen,))
        pool[0].finished()
        (finding,) = pool.compare()
        assert finding.next_step == step


def lines(findings: tuple[Finding, ...]) -> list[tuple[int, str]]:
    return [(finding.code[0].site.line, str(finding.culprits)) for finding in findings]


def test_findings_are_in_the_order_of_time_whatever_their_kinds_and_ranks():
    pool = Ranks(3)
    late = fault(pool, 0, "write", line=7, at=300)
    nan = fault(pool, 0, "not-finite", line=4, at=200)
    early = [fault(pool, rank, "read", line=1, at=100 + rank) for rank in (1, 2)]
    pool[0].more["sanitizer"] = SanitizerReport(faults=(late, nan))
    for rank, read in zip((1, 2), early, strict=True):
        pool[rank].more["sanitizer"] = SanitizerReport(faults=(read,))
    for state in pool:
        state.finished()
    assert lines(pool.compare()) == [(1, "1-2"), (5, "0"), (7, "0")]
