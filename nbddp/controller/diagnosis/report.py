"""The result of the diagnosis: a report of findings.

Runs in: the notebook's process. Pure. `Report.to_dict` is a promise to users, described in
docs/diagnosis.md: its fields are added to and never change their meaning within a version.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self, TypeAlias, get_args

from nbddp.controller.diagnosis.node_parts import NodePart, PoolNodes
from nbddp.controller.diagnosis.phrases import Predicate, place, seconds
from nbddp.wire.flight_recorder import DEFAULT_GROUP, GroupInfo, Site
from nbddp.wire.flight_recorder.matching import MESSAGES
from nbddp.wire.rank_set import Rank, RankSet, ranks_by_value

#: Longer than the 50 ms between two checks of the store by a rank that waits for a key.
_KEY_CHECK_S: Final = 0.06
#: The version of `Report.to_dict`.
DICT_VERSION: Final = 1

#: In the order in which a report shows them.
Kind: TypeAlias = Literal[
    "dead-rank",
    "first-error",
    "mismatched-collective",
    "p2p-cycle",
    "group-cycle",
    "p2p-unmatched",
    "store-wait",
    "missing-rank",
    "left-debugger",
    "straggler",
    "stuck-outside",
    "silent-mismatch",
    "desynchronized-loop",
    "not-finite",
    "buffer-in-use",
    "parted-replicas",
    "samples-twice",
    "samples-unread",
    "uneven-batches",
    "same-order",
    "crossed-lines",
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
#: The first word on a card, where the finding is proven; it also chooses the colour.
TITLES: Final[Mapping[Kind, str]] = {
    "dead-rank": "Dead rank",
    "first-error": "Error",
    "mismatched-collective": "Mismatch",
    "p2p-cycle": "Deadlock",
    "group-cycle": "Deadlock",
    "p2p-unmatched": "Deadlock",
    "store-wait": "Deadlock",
    "missing-rank": "Deadlock",
    "left-debugger": "Notice",
    "straggler": "Notice",
    "stuck-outside": "Notice",
    "silent-mismatch": "Warning",
    "desynchronized-loop": "Notice",
    "not-finite": "Warning",
    "buffer-in-use": "Warning",
    "parted-replicas": "Warning",
    "samples-twice": "Warning",
    "samples-unread": "Warning",
    "uneven-batches": "Warning",
    "same-order": "Warning",
    "crossed-lines": "Notice",
}
#: The kinds whose next step is a change of the user's code.
_ABOUT_CODE: Final = frozenset(KINDS) - {"dead-rank", "first-error", "left-debugger", "straggler"}
_WITHOUT_FAULTS: Final = (
    "Nothing, if a fault on purpose is the cause. The same cell without `--fault` shows whether "
    "its code is right."
)
_WITHOUT_SKIPS: Final = (
    "Nothing, if the operation that was skipped at the prompt is the cause. The same cell without "
    "`skip` shows whether its code is right."
)
_WITHOUT_TYPED: Final = (
    "Nothing, if what was typed at the prompt is the cause. The same cell without it shows whether "
    "its code is right."
)
#: The next step if an interrupt is the reason that the calls of ranks do not match.
AFTER_INTERRUPT: Final = (
    "Nothing, if the interrupt was meant. It finds ranks at different lines, so what they call "
    "next may meet another call, or none."
)

#: The state of a rank, as the controller knows it. ``finished``, ``raised``: it has left this cell.
#: ``idle``: it takes no part in this cell. ``silent``: it lives and does not answer.
RankStatus: TypeAlias = Literal[
    "running", "finished", "raised", "idle", "dead", "silent", "starting"
]


@dataclass(frozen=True)
class GroupRef:
    """A process group, as a finding names it.

    Example:
        >>> from nbddp.controller.diagnosis.report import GroupRef
        >>> group = GroupRef("1:5c", name="1", desc="tp", ranks=pool.rank_set("0-1"))
    """

    pg_id: str  #: the same on all ranks, and of one group only
    name: str = ""  #: torch's name, mostly a number
    desc: str = ""  #: what the user has called it (``group_desc``)
    ranks: RankSet = field(default_factory=RankSet)  #: its members

    @classmethod
    def of(cls, info: GroupInfo) -> Self:
        """Return the group that a rank has described.

        Args:
            info: the rank's description.

        Returns:
            The group.

        Example:
            >>> from nbddp.wire.flight_recorder import GroupInfo
            >>> GroupRef.of(GroupInfo.of("1:5c", name="1", desc="tp", ranks=(0, 1))).label
            "group 'tp' (ranks 0-1)"
        """
        return cls(info.pg_id, info.name, info.desc, RankSet.of(info.ranks))

    @property
    def is_default(self) -> bool:
        """Whether it is the default group.

        Example:
            >>> group.is_default
            False
        """
        return self.desc == DEFAULT_GROUP

    @property
    def label(self) -> str:
        """The group as sentences name it.

        Example:
            >>> group.label
            "group 'tp' (ranks 0-1)"
        """
        if self.is_default:
            return "the default group"
        members = f" ({self.ranks.describe()})" if self.ranks else ""
        named = self.desc if self.desc not in ("", "undefined") else self.name
        return f"group {named!r}{members}"

    def to_dict(self) -> dict[str, Any]:
        """Make plain data of it, which `json` can write.

        Example:
            >>> group.to_dict()
            {'pg_id': '1:5c', 'name': '1', 'desc': 'tp', 'ranks': [0, 1]}
        """
        return {
            "pg_id": self.pg_id,
            "name": self.name,
            "desc": self.desc,
            "ranks": list(self.ranks),
        }


def _with_place(what: str, site: Site | None) -> str:
    where = place(site)
    return f"{what}, at {where}" if where else what


@dataclass(frozen=True)
class PerRank:
    """The place of one rank, or how it ended.

    Example:
        >>> outcome = pool.run("x = 1")
        >>> place = pool.diagnose().ranks[1]
        >>> print(place)
        rank 1 has finished the cell and called no collective in it
    """

    rank: Rank
    status: RankStatus  #: ``running``, ``finished``, ``raised``, ``idle``, ``dead``, ...
    predicate: Predicate  #: ``waits in all_reduce #17``
    site: Site | None = None  #: the line that it is at, or that it has come to
    since_s: float | None = None  #: how long it has been waiting; None: it does not wait
    #: The line of a cell at which it waits, which may be another one than that of the operation.
    waits_at: Site | None = None
    node: int = -1  #: of the rank; -1: the pool has only one
    #: The longest time that it can wait, by the timeout of its operation; None: it is not known.
    limit_s: float | None = None

    def __str__(self) -> str:
        if self.since_s is None:
            return f"rank {self.rank} {self.description}"
        what = self.predicate.describe(1, has_duration=True)
        return f"rank {self.rank} {_with_place(what, self.site)}, for {seconds(self.since_s)}"

    @property
    def what(self) -> str:
        """The predicate of the rank: it continues a sentence that begins with the rank.

        Example:
            >>> place.what
            'has finished the cell and called no collective in it'
        """
        return str(self.predicate)

    @property
    def description(self) -> str:
        """The same with the line of the rank, if that is known.

        For example ``waits in all_reduce #17, at cell [3], line 5: `x.sum()` ``.

        Example:
            >>> place.description
            'has finished the cell and called no collective in it'
        """
        return _with_place(self.what, self.site)

    def after(self, later_s: float) -> "PerRank":
        """Return the same some seconds later: the rank has waited as much longer.

        For the notebook layer.

        Args:
            later_s: the time that has passed. No wait is longer than `limit_s`.
        """
        if self.since_s is None:
            return self
        waited_s = self.since_s + later_s
        if self.limit_s is not None and self.since_s < self.limit_s:
            waited_s = min(waited_s, self.limit_s)
        return replace(self, since_s=waited_s)

    def to_dict(self) -> dict[str, Any]:
        """Make plain data of it, which `json` can write.

        Example:
            >>> place.to_dict()["status"]
            'finished'
        """
        return {
            "rank": self.rank,
            "status": self.status,
            "what": self.what,
            "since_s": self.since_s,
            "site": None if self.site is None else _site_dict(self.site),
        }


@dataclass(frozen=True)
class CodeLine:
    """A line of the user's code that explains a finding.

    Example:
        >>> line = nbddp.last_report().findings[0].code[-1]
        >>> line.site.line, line.ranks
        (1, RankSet(0))
    """

    site: Site  #: its ``source`` has its indentation
    #: Those that wait there, or that alone ran it.
    ranks: RankSet = field(default_factory=RankSet)

    def to_dict(self) -> dict[str, Any]:
        """Make plain data of it, which `json` can write.

        Example:
            >>> line.to_dict()["ranks"]
            [0]
        """
        return {"site": _site_dict(self.site), "ranks": list(self.ranks)}


@dataclass(frozen=True)
class ChangedLine:
    """A line of a suggested change.

    Example:
        >>> [line.source for line in nbddp.last_report().findings[0].change.lines]
        ['if rank == 0:', '    dist.barrier()', 'dist.barrier()']
    """

    change: Literal["same", "removed", "added"]
    line: int  #: its number; 0: it is new, or stands for several
    source: str  #: with its indentation

    def to_dict(self) -> dict[str, Any]:
        """Make plain data of it, which `json` can write.

        Example:
            >>> nbddp.last_report().findings[0].change.lines[-1].to_dict()
            {'change': 'added', 'line': 0, 'source': 'dist.barrier()'}
        """
        return {"change": self.change, "line": self.line, "source": self.source}


@dataclass(frozen=True)
class CodeChange:
    """A change of the user's code after which the finding is gone.

    Example:
        >>> change = nbddp.last_report().findings[0].change
        >>> change.file, [line.change for line in change.lines]
        ('...', ['removed', 'removed', 'added'])
    """

    cell: int  #: number of the cell; 0: it is in a file
    file: str
    lines: tuple[ChangedLine, ...]

    def to_dict(self) -> dict[str, Any]:
        """Make plain data of it, which `json` can write.

        Example:
            >>> sorted(change.to_dict())
            ['cell', 'file', 'lines']
        """
        lines = [line.to_dict() for line in self.lines]
        return {"cell": self.cell, "file": self.file, "lines": lines}


@dataclass(frozen=True)
class Finding:
    """One cause, with the ranks that suffer from it.

    Example:
        >>> pool.run("if rank == 0: dist.barrier()")
        Traceback (most recent call last):
            ...
        nbddp.errors.DeadlockError: ...
        >>> finding = nbddp.last_report().findings[0]
        >>> finding.kind, finding.culprits, finding.waiting, finding.op
        ('missing-rank', RankSet(1), RankSet(0), 'barrier')
    """

    kind: Kind  #: docs/diagnosis.md describes each kind
    proven: bool  #: False: it may still resolve by itself, or is a notice
    culprits: RankSet  #: ranks that are the reason
    waiting: RankSet  #: ranks that wait
    headline: str  #: one sentence
    reason: str  #: why it is so
    next_step: str  #: what the user can do
    group: GroupRef | None = None
    op: str = ""  #: name of the operation: ``all_reduce``
    origin: str = ""  #: what a library called it for: ``gradients``; empty: the code called it
    collective_seq_id: int = 0  #: 0: it is no collective
    fields: tuple[str, ...] = ()  #: of `nbddp.wire.flight_recorder.schema.Signature`, that differ
    suspicions: tuple[str, ...] = ()  #: sentences on what may lie behind it; never proven
    ranks: Mapping[Rank, PerRank] = field(default_factory=dict)  #: all that are concerned
    since_s: float | None = None  #: the longest wait, in seconds
    #: Of a silent mismatch: what differs is an error, see `nbddp.wire.flight_recorder.matching`.
    is_error: bool = False
    #: Of a mismatch: ranks on which the operation has ended all the same, and has written.
    written: RankSet = field(default_factory=RankSet)
    #: Ranks, not the root, on which a reduce has ended: torch may leave partial sums there.
    scratch: RankSet = field(default_factory=RankSet)
    #: Lines of the user's code around the call that some ranks did not come to; often empty.
    code: tuple[CodeLine, ...] = ()
    change: CodeChange | None = None  #: what to do, as a change of the code; None: none is known
    now: str = ""  #: the state of the pool after the cell, if the finding is about that
    is_consequence: bool = False  #: it belongs to another finding, which says what to do
    #: An ``except`` around each rank that waits takes any error: the cell may end without one.
    is_handled: bool = False
    #: The headline begins with "Rank" or "Ranks"; False: perhaps with the name of a function.
    begins_with_ranks: bool = True
    #: The nodes of the ranks that are the reason, if the pool has several and it tells anything.
    nodes: tuple[NodePart, ...] = ()

    @property
    def has_error_below(self) -> bool:
        """Whether an error, once nbddp acts, stands below the card and ends with the next step.

        Example:
            >>> finding.has_error_below
            True
        """
        statuses = {each.status for each in self.ranks.values()}
        if self.kind == "mismatched-collective" and "raised" in statuses:
            return True  # an `except` around the ranks that wait takes not the error of the others
        # Ranks outside of the cell: it may be a prompt of the debugger, which has no error.
        return not self.is_handled and "idle" not in statuses

    @property
    def clause(self) -> str:
        """The headline as it stands behind a colon, without its period.

        Example:
            >>> finding.clause
            'rank 1 never called barrier; rank 0 waits for it'
        """
        text = self.headline.rstrip(".")
        is_lower = self.begins_with_ranks or self.is_consequence
        return f"{text[:1].lower()}{text[1:]}" if is_lower else text

    @property
    def verdict(self) -> str:
        """The words in front of the reason, which say whether the finding is proven.

        Example:
            >>> finding.verdict
            'Proven:'
        """
        return "Proven:" if self.proven else "Not proven:"

    @property
    def explanation(self) -> str:
        """The reason, and whether it is proven.

        Example:
            >>> finding.explanation
            'Proven: a collective needs every member of the default group, and rank 1 ...'
        """
        return f"{self.verdict} {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Make plain data of it, which `json` can write; sets of ranks become lists.

        Example:
            >>> finding.to_dict()["culprits"]
            [1]
        """
        return {
            "kind": self.kind,
            "proven": self.proven,
            "is_error": self.is_error,
            "is_consequence": self.is_consequence,
            "culprits": list(self.culprits),
            "nodes": [part.to_dict() for part in self.nodes],
            "waiting": list(self.waiting),
            "written": list(self.written),
            "scratch": list(self.scratch),
            "group": None if self.group is None else self.group.to_dict(),
            "op": self.op,
            "origin": self.origin,
            "collective_seq_id": self.collective_seq_id,
            "fields": list(self.fields),
            "headline": self.headline,
            "explanation": self.explanation,
            "suspicions": list(self.suspicions),
            "now": self.now,
            "next_step": self.next_step,
            "since_s": self.since_s,
            "ranks": [each.to_dict() for each in self.ranks.values()],
            "code": [line.to_dict() for line in self.code],
            "change": None if self.change is None else self.change.to_dict(),
        }

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for findings that say the same, whenever they are made.

        Example:
            >>> finding.identity == nbddp.last_report().findings[0].identity
            True
        """
        return (
            # A rank that others wait for may sleep now and compute a moment later.
            self.kind if self.proven else "notice",
            self.culprits.ranks,
            self.waiting.ranks,
            self.group.pg_id if self.group else "",
            self.op,
            self.collective_seq_id,
            self.fields,
        )


@dataclass(frozen=True)
class Report:
    """The findings about a cell at one moment: what `Pool.diagnose` gives.

    Example:
        >>> pool.run("if rank == 0: dist.barrier()")
        Traceback (most recent call last):
            ...
        nbddp.errors.DeadlockError: ...
        >>> report = nbddp.last_report()
        >>> report.stuck, [finding.kind for finding in report.findings]
        (RankSet(0), ['missing-rank'])
    """

    run_id: str  #: of the cell
    findings: tuple[Finding, ...] = ()  #: proven first, most telling first
    stuck: RankSet = field(default_factory=RankSet)  #: ranks that can never continue by themselves
    #: The proof holds if the ``version`` of each of these is the same in two rounds of looks.
    involved: RankSet = field(default_factory=RankSet)
    pg_ids: tuple[str, ...] = ()  #: groups, also unfinished ones, in which stuck ranks are blocked
    #: Stuck ranks that wait for keys of the store, or for others to create a group through it.
    waits_for_store: RankSet = field(default_factory=RankSet)
    #: The shortest timeout of an operation that a stuck rank waits for, and the time left of it.
    earliest_timeout_ms: int | None = None
    earliest_timeout_left_ms: int | None = None
    ranks: Mapping[Rank, PerRank] = field(default_factory=dict)  #: every rank of the pool
    #: Faults on purpose that had struck in the cell, in words: perhaps the causes of all findings.
    injected: tuple[str, ...] = ()
    #: Operations that the user had skipped at the prompt, in words: the same.
    left_out: tuple[str, ...] = ()
    #: Calls and code that the user had typed there, in words: the same.
    typed: tuple[str, ...] = ()

    def with_injected(
        self,
        injected: Sequence[str],
        left_out: Sequence[str] = (),
        typed: Sequence[str] = (),
        *,
        disturbed: Iterable[Rank] | None = None,
        only_delays: bool = False,
    ) -> "Report":
        """Add what the user has caused on purpose; then no finding blames the user's code.

        A use of a tensor before the end of its operation is an exception: the lines of one rank are
        its reason, so nothing but a fault on that rank can cause it. Delays cause no error that is
        proven: such findings stay as they are.

        For the notebook layer.

        Args:
            injected: faults, in words.
            left_out: operations that were skipped at the prompt, in words.
            typed: calls and code that were typed there, in words.
            disturbed: ranks that a fault may have brought to other lines; None: all.
            only_delays: the faults have only delayed or stopped ranks for some time.

        Returns:
            The report; without any of these, as it is.
        """
        by_hand = bool(left_out or typed)
        if not (injected or by_hand):
            return self
        step = _WITHOUT_TYPED if typed else _WITHOUT_SKIPS
        step = _WITHOUT_FAULTS if injected else step
        known = None if by_hand or disturbed is None else RankSet.of(disturbed)

        are_delays = only_delays and not by_hand

        def is_about_code(finding: Finding) -> bool:
            is_own = finding.kind == "buffer-in-use" and finding.proven
            is_own = is_own and known is not None and not set(known) & set(finding.culprits)
            return finding.kind in _ABOUT_CODE and not is_own

        findings = tuple(
            replace(finding, next_step=step, suspicions=(), code=(), change=None)
            if is_about_code(finding)
            else replace(finding, suspicions=())
            for finding in self.findings
        )
        if are_delays:
            findings = tuple(
                before if before.proven and before.kind in _ABOUT_CODE else after
                for before, after in zip(self.findings, findings, strict=True)
            )
        return replace(
            self,
            findings=findings,
            injected=tuple(injected),
            left_out=tuple(left_out),
            typed=tuple(typed),
        )

    def after_interrupt(self) -> "Report":
        """Blame no code for calls that do not match, the first of which came after an interrupt.

        For the notebook layer.

        Returns:
            The report.
        """
        findings = tuple(
            replace(each, next_step=AFTER_INTERRUPT, suspicions=(), code=(), change=None)
            if each.kind == "mismatched-collective" and each.next_step != AFTER_INTERRUPT
            else each
            for each in self.findings
        )
        return replace(self, findings=findings)

    def with_nodes(self, nodes: PoolNodes) -> "Report":
        """Add their nodes to all ranks, and to each finding those of the ranks that are its reason.

        For the notebook layer.

        Args:
            nodes: of the pool.

        Returns:
            The report.
        """
        node_of = nodes.node_by_rank()

        def placed(ranks: Mapping[Rank, PerRank]) -> dict[Rank, PerRank]:
            return {rank: replace(each, node=node_of.get(rank, -1)) for rank, each in ranks.items()}

        findings = tuple(
            replace(
                finding,
                nodes=nodes.parts(_odd_ranks(finding, nodes.world_size)),
                ranks=placed(finding.ranks),
            )
            for finding in self.findings
        )
        return replace(self, findings=findings, ranks=placed(self.ranks))

    def later(self, seconds: float, until_left: Mapping[Rank, float]) -> "Report":
        """Return the same some seconds later: ranks have waited as much longer.

        For the notebook layer.

        Args:
            seconds: the time that has passed.
            until_left: of ranks that have left the cell since, the time until they did.
        """

        def aged(ranks: Mapping[Rank, PerRank]) -> dict[Rank, PerRank]:
            return {
                rank: each.after(min(seconds, until_left.get(rank, seconds)))
                for rank, each in ranks.items()
            }

        findings = tuple(replace(finding, ranks=aged(finding.ranks)) for finding in self.findings)
        return replace(self, findings=findings, ranks=aged(self.ranks))

    @property
    def verdict(self) -> bool:
        """Whether a rank is stuck, and that is proven: the cell may be ended.

        Example:
            >>> report.verdict, pool.diagnose().verdict
            (True, False)
        """
        return bool(self.stuck)

    @property
    def explains_exits(self) -> bool:
        """Whether it tells how ranks exited, and what that means for the next cell.

        Example:
            >>> report.explains_exits
            False
        """
        return any(finding.kind == "dead-rank" and finding.now for finding in self.findings)

    @property
    def confirm_after_s(self) -> float:
        """Seconds after which a second round of looks can prove something.

        Setting a key of the store leaves no record: the ranks that wait for it must have looked
        into the store since the first round.

        Example:
            >>> report.confirm_after_s  # no rank waits for a key
            0.0
        """
        return _KEY_CHECK_S if self.waits_for_store else 0.0

    @property
    def proven(self) -> tuple[Finding, ...]:
        """The findings that are proven.

        Example:
            >>> [finding.kind for finding in report.proven]
            ['missing-rank']
        """
        return tuple(finding for finding in self.findings if finding.proven)

    @property
    def notices(self) -> tuple[Finding, ...]:
        """The findings that are not proven.

        Example:
            >>> report.notices
            ()
        """
        return tuple(finding for finding in self.findings if not finding.proven)

    @property
    def fingerprint(self) -> str:
        """Equal for reports that say the same; times, and the lines of running ranks, may differ.

        Example:
            >>> len(report.fingerprint)
            16
        """
        identities = [finding.identity for finding in self.findings]
        text = json.dumps([self.run_id, self.verdict, identities])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Make plain data of it, which `json` can write; docs/diagnosis.md describes it.

        Example:
            >>> report.to_dict()["stuck"]
            [0]
        """
        return {
            "version": DICT_VERSION,
            "run_id": self.run_id,
            "verdict": self.verdict,
            "stuck": list(self.stuck),
            "involved": list(self.involved),
            "pg_ids": list(self.pg_ids),
            "waits_for_store": list(self.waits_for_store),
            "earliest_timeout_ms": self.earliest_timeout_ms,
            "earliest_timeout_left_ms": self.earliest_timeout_left_ms,
            "findings": [finding.to_dict() for finding in self.findings],
            "ranks": [each.to_dict() for each in self.ranks.values()],
            "injected": list(self.injected),
            "left_out": list(self.left_out),
            "typed": list(self.typed),
            "fingerprint": self.fingerprint,
        }


def _site_dict(site: Site) -> dict[str, Any]:
    return {
        "cell": site.cell,
        "line": site.line,
        "function": site.function,
        "source": site.source,
        "file": site.file,
    }


def _odd_ranks(finding: Finding, world_size: int) -> RankSet:
    """The culprits; the fewest that did the same, if all ranks are culprits: of a mismatch.

    The two ends of a message are both told.
    """
    is_message = finding.kind == "silent-mismatch" and finding.op in MESSAGES
    if len(finding.culprits) < world_size or not finding.ranks or is_message:
        return finding.culprits
    doing = {rank: (each.what, each.site) for rank, each in finding.ranks.items()}
    return min(ranks_by_value(doing).values(), key=len)
