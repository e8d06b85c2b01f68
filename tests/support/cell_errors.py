"""Results of ranks for tests of the error of a cell: builders, and the error made from them."""

import re
from typing import Any

from nbddp.controller.cell_errors import build, hints
from nbddp.controller.diagnosis.phrases import Predicate, RankVerb
from nbddp.controller.diagnosis.report import Finding, Kind, PerRank, Report
from nbddp.controller.state.outcome import RankResult, RunOutcome
from nbddp.errors import CellError
from nbddp.wire.flight_recorder.schema import Mismatch, Operation, Signature, Site
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import RankExited
from nbddp.wire.rank_set import RankSet

LOGS = {rank: f"/logs/rank{rank}.log" for rank in range(16)}


def plain(coloured: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", coloured)


def ok(rank: int) -> RankResult:
    return RankResult(rank, "ok", elapsed_s=1.0)


def unfinished(rank: int) -> RankResult:
    return RankResult(rank, "unfinished", elapsed_s=1.0)


def raised(
    rank: int, ename: str = "ValueError", evalue: str = "bad", at_ns: int = 0, name: str = ""
) -> RankResult:
    lines = [f"<traceback of {ename}: {evalue}>"]
    info = ErrorInfo(ename=ename, evalue=evalue, traceback=lines, name=name)
    return RankResult(rank, "error", elapsed_s=1.0, error=info, failed_at_ns=at_ns)


def died(
    rank: int,
    exit_code: int = -9,
    printed: str = "",
    *,
    out_of_memory: bool = False,
    elapsed_s: float = 3.2,
    fault: str = "",
) -> RankResult:
    exited = RankExited(
        rank=rank,
        pid=41530 + rank,
        exit_code=exit_code,
        out_of_memory=out_of_memory,
        last_output=printed,
        fault=fault,
    )
    return RankResult(rank, "exited", elapsed_s=elapsed_s, exited=exited)


def cell_error(
    *results: RankResult,
    is_plain: bool = True,
    origins: hints.NameOrigins | None = None,
    **more: Any,
) -> CellError:
    """The error of a cell; in a pool that cannot recover, unless the test says so."""
    outcome = RunOutcome(
        run_id="r",
        results={result.rank: result for result in results},
        elapsed_s=4.0,
        is_plain=is_plain,
        **more,
    )
    error = build.cell_error(outcome, "cell [7]", LOGS, origins)
    assert error is not None
    return error


def text(error: CellError) -> str:
    """The plain text of an error; colours are for `_render_traceback_` only."""
    assert "\x1b" not in str(error)
    return str(error)


ALL_REDUCE = Signature(
    kind="collective", op="all_reduce", input_sizes=((4,),), input_dtypes=("float32",)
)


def site(line: int, source: str = "dist.all_reduce(x)", cell: int = 7) -> Site:
    return Site(line=line, function="<module>", source=source, cell=cell)


def freed(rank: int, line: int = 5, ename: str = "CollectiveAbortedError") -> RankResult:
    traceback = [f"Cell In[7], line {line}\n----> {line} dist.all_reduce(x)\n\n{ename}: freed"]
    info = ErrorInfo(ename=ename, evalue="freed", traceback=traceback, site=site(line))
    return RankResult(rank, "error", elapsed_s=1.0, error=info, failed_at_ns=99, was_freed=True)


WAITS = Predicate(RankVerb.WAITS, " in all_reduce #17")


FINISHED = Predicate(RankVerb.HAS_FINISHED, aside=("; its last operation was all_reduce #16", ""))


def report(kind: Kind = "missing-rank", *, is_error: bool = False, **more: Any) -> Report:
    where = {
        0: PerRank(0, "running", WAITS, site(5), 1.5),
        1: PerRank(1, "finished", FINISHED),
        2: PerRank(2, "running", WAITS, site(5), 1.5),
    }
    finding = Finding(
        kind=kind,
        proven=True,
        culprits=RankSet.of([1]),
        waiting=RankSet.of([0, 2]),
        headline="Rank 1 never called all_reduce #17; ranks 0,2 wait for it.",
        reason="it has finished.",
        next_step="Call it on all ranks.",
        ranks=where,
        is_error=is_error,
    )
    return Report(
        run_id="r",
        findings=(finding,),
        stuck=RankSet.of([0, 2]),
        involved=RankSet.all(3),
        ranks=where,
        **more,
    )


def rendered(error: CellError) -> str:
    """The text of the error in a notebook."""
    [shown] = error._render_traceback_()
    return plain(shown)


def mismatch() -> Mismatch:
    def operation(signature: Signature, line: int, source: str) -> Operation:
        return Operation(
            record_id=1,
            pg_id="0@x",
            signature=signature,
            state="scheduled",
            collective_seq_id=17,
            site=site(line, source),
        )

    broadcast = Signature(kind="collective", op="broadcast", root=0)
    return Mismatch(
        rank=1,
        peer=0,
        mine=operation(broadcast, 9, "dist.broadcast(x, 0)"),
        theirs=operation(ALL_REDUCE, 5, "dist.all_reduce(x)"),
        fields=("op",),
    )
