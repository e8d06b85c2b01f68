"""Findings and reports, made by hand: the material of cards."""

from collections.abc import Iterable
from typing import Any

from nbddp.controller.diagnosis.phrases import Predicate, RankVerb
from nbddp.controller.diagnosis.report import Finding, GroupRef, Kind, PerRank, Report
from nbddp.wire.flight_recorder.schema import Site
from nbddp.wire.rank_set import RankSet
from tests.support.traces import RUN_ID

IF = Site(file="c", line=3, function="<module>", source="if rank != 2:", cell=4)
CALL = Site(file="c", line=5, function="<module>", source="dist.all_reduce(x)", cell=4)
WAITS = Predicate(RankVerb.WAITS, " in all_reduce #17")


def finding(
    culprits: Iterable[int],
    waiting: Iterable[int],
    ranks: Iterable[PerRank],
    *,
    kind: Kind = "missing-rank",
    proven: bool = True,
    **fields: Any,
) -> Finding:
    made: dict[str, Any] = {
        "headline": "rank 2 never called all_reduce #17",
        "reason": "rank 2 has finished the cell." if proven else "rank 2 runs Python code.",
        "next_step": "call `all_reduce` on all ranks",
        "group": GroupRef("w", "0", "default_pg", RankSet.all(4)),
        **fields,
    }
    return Finding(
        kind=kind,
        proven=proven,
        culprits=RankSet.of(culprits),
        waiting=RankSet.of(waiting),
        ranks={each.rank: each for each in ranks},
        **made,
    )


def missing(count: int = 4, culprit: int = 2, **fields: Any) -> Finding:
    others = [rank for rank in range(count) if rank != culprit]
    waits = [PerRank(r, "running", WAITS, CALL, 3.0 + r / 1000) for r in others]
    ended = PerRank(culprit, "finished", Predicate(RankVerb.HAS_FINISHED), IF)
    return finding([culprit], others, [*waits, ended], **fields)


def verdict(*findings: Finding, **fields: Any) -> Report:
    stuck = RankSet.of(rank for each in findings for rank in each.waiting)
    return Report(RUN_ID, findings, stuck, **fields)
