"""Ranks as the diagnosis sees them: methods that say what each rank has done and where it is.

pool = Ranks(3)
pool[0].blocked("all_reduce", line=4)
pool[1].blocked("all_reduce", line=4)
pool[2].finished()
report = pool.diagnose()
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from nbddp.controller.diagnosis import (
    CompareScope,
    Finding,
    RankView,
    Report,
    compare_records,
    diagnose,
)
from nbddp.controller.diagnosis.control_flow import Code
from nbddp.controller.diagnosis.exit_phrase import ExitPhrase
from nbddp.controller.diagnosis.report import RankStatus
from nbddp.wire.flight_recorder.schema import (
    CONNECTION,
    Activity,
    ExceptionLine,
    Failure,
    GroupInfo,
    LoopVariable,
    Mismatch,
    Operation,
    OperationKind,
    OperationState,
    RankLook,
    Signature,
    Site,
    ThreadLook,
    Wait,
    WaitKind,
)
from nbddp.wire.rank_set import RankSet

RUN = "run"
NOW = 100_000_000_000
SECOND = 1_000_000_000
CELL = 3


def brief(look: RankLook) -> RankLook:
    """The answer of the same rank to a brief question, see `DescribeRank.is_brief`."""
    return RankLook(
        rank=look.rank,
        pid=look.pid,
        activity=look.activity,
        version=look.version,
        time_ns=look.time_ns,
        key_check_age_ns=look.key_check_age_ns,
    )


def site(line: int, source: str = "", *, function: str = "<module>", origin: str = "") -> Site:
    """A line of the cell; the feature of a library that calls there, such as ``ddp-gradients``."""
    return Site(
        file="<cell>", line=line, function=function, source=source, cell=CELL, origin=origin
    )


def signature(kind: OperationKind, op: str, **fields: Any) -> Signature:
    """A signature; the default is float32 tensors of four elements."""
    if kind in ("collective", "send", "recv") and "barrier" not in op:
        fields = {"input_sizes": ((4,),), "input_dtypes": ("float32",), **fields}
        fields.setdefault("tensors", len(fields["input_sizes"]))
        count = sum(_numel(size) for size in fields["input_sizes"])
        fields.setdefault("nbytes", 4 * count)
    return Signature(kind=kind, op=op, **fields)


def _numel(size: tuple[int, ...]) -> int:
    count = 1
    for part in size:
        count *= part
    return count


class RankState:
    """One rank; each method returns the record of what it did, or the rank."""

    def __init__(self, rank: int, pool: "Ranks") -> None:
        self.rank = rank
        self.pool = pool
        self.operations: list[Operation] = []
        self.threads: dict[str, ThreadLook] = {"main": _thread("main")}
        self.state: RankStatus = "running"
        self.activity: Activity = "running"
        self.answers = True
        self.clock = ""
        self.has_children = False
        self.more: dict[str, Any] = {}
        self.seq: dict[str, int] = {}
        self.p2p: dict[tuple[str, str, int, int], int] = {}
        self.version = 0
        self.set_keys: tuple[str, ...] = ()

    # --- operations ----------------------------------------------------------------------------

    def issue(
        self,
        op: str = "all_reduce",
        *,
        group: str = "world",
        line: int = 1,
        source: str = "",
        function: str = "<module>",
        origin: str = "",
        state: OperationState = "scheduled",
        peer: int = -1,
        tag: int = 0,
        failure: Failure | None = None,
        waited_ns: int = 0,
        timeout_ms: int = 0,
        run_id: str = RUN,
        at_s: float = 0.0,
        ended_s: float = 0.0,
        iteration: Iterable[tuple[str, int]] = (),
        **fields: Any,
    ) -> int:
        """Issue an operation without waiting for it."""
        kind: OperationKind = "collective"
        if op in ("send", "recv"):
            kind = op  # type: ignore[assignment]  # one of two
        elif op in ("new_group", "init_process_group", "init_rpc"):
            kind = "creation"
        elif op.startswith("store") or op == CONNECTION:
            kind = "store"
        seq = p2p_seq = 0
        if kind == "collective":
            seq = self.seq[group] = self.seq.get(group, 0) + 1
        elif kind in ("send", "recv"):
            key = (kind, group, peer, tag)
            p2p_seq = self.p2p[key] = self.p2p.get(key, 0) + 1
        self.version += 1
        operation = Operation(
            record_id=len(self.operations) + 1,
            pg_id="" if kind == "store" else group,
            signature=signature(kind, op, **fields),
            state=state,
            collective_seq_id=seq,
            p2p_seq_id=p2p_seq,
            peer=peer,
            tag=tag,
            time_created_ns=NOW - int(at_s * SECOND),
            time_completed_ns=NOW - int(ended_s * SECOND) if ended_s else 0,
            site=site(line, source or f"dist.{op}(x)", function=function, origin=origin),
            failure=failure,
            waited_ns=waited_ns,
            timeout_ms=timeout_ms,
            run_id=run_id,
            iteration=tuple(LoopVariable(name, value) for name, value in iteration),
        )
        self.operations.append(operation)
        return operation.record_id

    def done(self, op: str = "all_reduce", **fields: Any) -> int:
        """An operation that has completed."""
        return self.issue(op, state="completed", **fields)

    def blocked(self, op: str = "all_reduce", *, thread: str = "main", **fields: Any) -> int:
        """Issue an operation and wait for it."""
        record = self.issue(op, **fields)
        self.waits(record, thread=thread, since_s=fields.get("at_s", 0.0))
        return record

    # --- threads -------------------------------------------------------------------------------

    def waits(
        self,
        *records: int,
        thread: str = "main",
        kind: WaitKind = "operation",
        since_s: float = 0.0,
        stack: tuple[Site, ...] = (),
    ) -> "RankState":
        """A thread waits for these records."""
        wait = Wait(kind=kind, record_ids=records, since_ns=NOW - int(since_s * SECOND))
        self.threads[thread] = _thread(thread, wait=wait, stack=stack)
        return self

    def runs(
        self, source: str = "work()", *, line: int = 2, innermost: str = "", thread: str = "main",
        importing: str = "",
    ) -> "RankState":  # fmt: skip
        """A thread runs this line, perhaps inside the import of a library."""
        stack = (site(line, source),)
        look = _thread(thread, stack=stack, innermost=innermost)
        self.threads[thread] = msgspec.structs.replace(look, importing=importing)
        return self

    def sleeps_in_pool(self, thread: str = "worker") -> "RankState":
        """A thread waits for work from other threads."""
        self.threads[thread] = _thread(thread, is_dormant=True)
        return self

    # --- states --------------------------------------------------------------------------------

    def _over(self, state: RankStatus) -> "RankState":
        self.state = state
        self.activity = "idle"
        self.threads["main"] = _thread("main")
        return self

    def finished(self) -> "RankState":
        """The cell has ended on this rank."""
        return self._over("finished")

    def idle(self) -> "RankState":
        """The rank takes no part in the cell."""
        return self._over("idle")

    def fresh(self) -> "RankState":
        """The rank took the place of one that ended in the cell."""
        self.more.update(is_fresh=True)
        return self._over("idle")

    def raised(self, error: str = "ValueError: boom", line: int = 0, **fields: Any) -> "RankState":
        """The cell has ended on this rank with an exception."""
        where = site(line, "raise ValueError('boom')") if line else None
        name, _, text = error.partition(": ")
        self.more.update(error=ExceptionLine(name=name, text=text, site=where), **fields)
        return self._over("raised")

    def dead(self, exit_text: str = "SIGKILL (signal 9)") -> "RankState":
        """Its process has ended; its agent has read the records."""
        self.more.update(exit_text=exit_text, exit_phrase=ExitPhrase(f"exited with {exit_text}"))
        self._over("dead")
        self.answers = False
        return self

    def lost(self) -> "RankState":
        """Its node was given up: perhaps its process still runs."""
        why = "node 1 was given up (nothing was heard of h12 for 60 s)"
        self.more.update(
            exit_text=why,
            exit_phrase=ExitPhrase(f": {why}", was_lost=True),
            lost_agent=True,
            was_given_up=True,
        )
        self._over("dead")
        self.answers = False
        return self

    def reforming(self) -> "RankState":
        """The rank makes its process groups again."""
        self._over("finished")
        self.activity = "reforming"
        return self

    def silent(self) -> "RankState":
        """The rank lives and does not answer."""
        self.state = "silent"
        self.answers = False
        return self

    def starting(self) -> "RankState":
        """The process of the rank is being made."""
        self.state = "starting"
        self.answers = False
        return self

    def saw(self, mine: int, other: "RankState", theirs: int, *fields: str) -> Mismatch:
        """The report of the rank about two records that do not match."""
        return Mismatch(
            rank=self.rank,
            peer=other.rank,
            mine=self.operations[mine - 1],
            theirs=other.operations[theirs - 1],
            fields=fields,
        )

    # --- what is seen --------------------------------------------------------------------------

    def infos(self) -> tuple[GroupInfo, ...]:
        """The groups, as this rank counts in them."""
        return tuple(
            msgspec.structs.replace(
                info,
                collective_seq_id=self.seq.get(info.pg_id, 0),
                p2p_seq_id=max(
                    (count for key, count in self.p2p.items() if key[1] == info.pg_id), default=0
                ),
            )
            for info in self.pool.groups.values()
            if self.rank in info.ranks
        )

    def view(self, *, last: int | None = None) -> RankView:
        """The rank as the controller knows it.

        Args:
            last: only so many of the newest operations are seen, and those that are open.
        """
        cut = 0 if last is None else len(self.operations) - last
        seen = tuple(
            each
            for index, each in enumerate(self.operations)
            if index >= cut or each.state == "scheduled"
        )
        look = RankLook(
            rank=self.rank,
            pid=1000 + self.rank,
            activity=self.activity,
            version=self.version,
            time_ns=NOW,
            clock=self.clock,
            has_children=self.has_children,
            run_id=RUN if self.activity == "running" else "",
            threads=tuple(self.threads.values()),
            groups=self.infos(),
            operations=seen,
            set_keys=self.set_keys,
        )
        return RankView(
            rank=self.rank,
            state=self.state,
            look=look if self.answers else None,
            operations=() if self.answers else seen,
            **self.more,
        )


class Ranks:
    """The ranks of a pool, all running Python at first."""

    def __init__(self, count: int) -> None:
        self.groups = {
            "world": GroupInfo.of(
                pg_id="world", name="0", desc="default_pg", ranks=tuple(range(count))
            )
        }
        self.states = [RankState(rank, self) for rank in range(count)]
        #: The source of the cell, and of other cells by their number; empty: it is not known.
        self.code: dict[int, str] = {}

    def __getitem__(self, rank: int) -> RankState:
        return self.states[rank]

    def __iter__(self) -> Any:
        return iter(self.states)

    def group(self, name: str, *ranks: int, run_id: str = "") -> str:
        """Make a group that these ranks are members of."""
        self.groups[name] = GroupInfo.of(
            pg_id=name, name=name, desc="undefined", ranks=ranks, run_id=run_id
        )
        return name

    def views(self, *, last: int | None = None) -> dict[int, RankView]:
        """All of them."""
        return {state.rank: state.view(last=last) for state in self.states}

    def diagnose(self, *, last: int | None = None) -> Report:
        """The report."""
        return diagnose(self.views(last=last), now_ns=NOW, run_id=RUN, sources=self._source)

    def _source(self, site: Site) -> Code | None:
        return Code(self.code[site.cell]) if site.cell in self.code else None

    def compare(self, scope: CompareScope = "all") -> tuple[Finding, ...]:
        """The report about the records after the cell."""
        return compare_records(
            self.views(), now_ns=NOW, run_id=RUN, sources=self._source, scope=scope
        )


def _thread(
    name: str,
    *,
    wait: Wait | None = None,
    is_dormant: bool = False,
    stack: tuple[Site, ...] = (),
    innermost: str = "",
) -> ThreadLook:
    return ThreadLook(
        name=name,
        is_main=name == "main",
        wait=wait,
        is_dormant=is_dormant,
        stack=stack,
        innermost=innermost,
    )


def only(pool: Ranks) -> Finding:
    """The one finding of a pool, which is proven."""
    report = pool.diagnose()
    (finding,) = report.findings
    assert finding.proven
    assert report.verdict
    assert report.stuck == finding.waiting
    assert finding.explanation.startswith("Proven: ")
    return finding


def missing(source: str, calls: dict[int, list[int]], waiting_at: int) -> Finding:
    """What is found when rank 1 of three has finished a cell, and the others wait.

    Args:
        source: of the cell.
        calls: lines of the calls that have ended, by rank.
        waiting_at: the line at which ranks 0 and 2 wait.
    """
    pool = Ranks(3)
    pool.code[CELL] = source
    for rank, lines in calls.items():
        for line in lines:
            pool[rank].done(line=line)
    for rank in (0, 2):
        pool[rank].blocked(line=waiting_at)
    pool[1].finished()
    return only(pool)


def told(finding: Finding) -> tuple[str, str, str]:
    """Kind, culprits, waiting."""
    return finding.kind, str(finding.culprits), str(finding.waiting)


def notices(pool: Ranks) -> list[tuple[str, str, str]]:
    """Kind, culprits, waiting of each; nothing is proven."""
    report = pool.diagnose()
    assert not report.verdict
    assert report.stuck == report.involved == RankSet()
    assert report.pg_ids == ()
    assert not report.proven
    assert all(each.explanation.startswith("Not proven: ") for each in report.notices)
    return [(each.kind, str(each.culprits), str(each.waiting)) for each in report.findings]
