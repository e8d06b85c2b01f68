"""Plays the messages of ranks to their end, as they are and with a change.

Runs in: the notebook's process. Pure. Records tell the messages that are open; the source tells
those that come behind them. A rank whose next calls are not known may call anything.
"""

import ast
import builtins
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nbddp.controller.diagnosis.code_places import called
from nbddp.controller.diagnosis.control_flow import Code
from nbddp.controller.diagnosis.definitions import function_at, nodes_of
from nbddp.controller.diagnosis.message_calls import MessageCall, message_calls, runs
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.wire.flight_recorder import Operation, OperationKind
from nbddp.wire.flight_recorder.matching import MESSAGES
from nbddp.wire.rank_set import Rank

#: Functions that return at once.
_STARTS = ("isend", "irecv")
#: Attributes that call no operation of torch.distributed: ``req.wait()``, ``x.clone()``.
_HARMLESS = frozenset(("wait", "clone", "item", "append", "get_rank", "get_world_size"))
#: Arguments of a message: the tensor and the other end.
_PLAIN_ARGUMENTS = 2
#: The code of more ranks is not read: what they call next counts as unknown.
_MAX_READ = 128


@dataclass(frozen=True)
class Message:
    """One end of a message, which a rank has called or will call."""

    kind: OperationKind
    rank: Rank
    peer: Rank
    pg_id: str
    tag: int = 0
    record_id: int = 0  #: 0: it has not been called yet

    @property
    def channel(self) -> tuple[str, Rank, Rank, int]:
        """Both ends of a message have the same one."""
        ends = (self.rank, self.peer) if self.kind == "send" else (self.peer, self.rank)
        return self.pg_id, *ends, self.tag


@dataclass(frozen=True)
class Step:
    """Messages that a rank issues together."""

    messages: tuple[Message, ...]
    waits: bool = True  #: it goes on when they have met their other ends


@dataclass(frozen=True)
class Script:
    """The messages of a rank from now on."""

    steps: tuple[Step, ...] = ()
    is_whole: bool = False  #: it calls nothing else


@dataclass(frozen=True)
class Simulation:
    """The scripts of all ranks."""

    script_by_rank: Mapping[Rank, Script]

    def with_peer(self, rank: Rank, operation: Operation, peer: Rank) -> "Simulation":
        """Let an open message, or one that was sent and dropped, have another end."""
        return self._with_end(rank, replace(_message(rank, operation), peer=peer))

    def with_tag(self, rank: Rank, operation: Operation, tag: int) -> "Simulation":
        """Let such a message have another tag."""
        return self._with_end(rank, replace(_message(rank, operation), tag=tag))

    def _with_end(self, rank: Rank, changed: Message) -> "Simulation":
        """Let a message stand for the one that has its record."""
        script = self.script_by_rank[rank]
        steps = tuple(
            replace(
                step,
                messages=tuple(
                    changed if each.record_id == changed.record_id else each
                    for each in step.messages
                ),
            )
            for step in script.steps
        )
        if steps == script.steps:
            steps = (Step((changed,), waits=False), *steps)
        return self._with(rank, replace(script, steps=steps))

    def with_partner(self, kind: str, rank: Rank, peer: Rank, right: Rank) -> "Simulation":
        """Let the messages of a rank with another one, open and to come, have a third one."""
        script = self.script_by_rank[rank]
        steps = tuple(
            replace(
                step,
                messages=tuple(
                    replace(each, peer=right) if (each.kind, each.peer) == (kind, peer) else each
                    for each in step.messages
                ),
            )
            for step in script.steps
        )
        return self._with(rank, replace(script, steps=steps))

    def with_message(self, message: Message) -> "Simulation":
        """Let a rank call a message that it has left out."""
        script = self.script_by_rank.get(message.rank, Script())
        steps = (Step((message,), waits=False), *script.steps)
        return self._with(message.rank, replace(script, steps=steps))

    def with_other_order(self, ranks: Iterable[Rank]) -> "Simulation":
        """Let ranks call the next message of the other kind before the one in which they wait."""
        changed = self
        for rank in ranks:
            script = self.script_by_rank[rank]
            order = [index for index, step in enumerate(script.steps) if step.waits]
            kinds = {each.kind for index in order[:1] for each in script.steps[index].messages}
            others = (
                index
                for index, step in enumerate(script.steps)
                if order and index > order[0] and kinds.isdisjoint(m.kind for m in step.messages)
            )
            other = next(others, None)
            steps = [*script.steps]
            if other is not None:
                steps.insert(order[0], steps.pop(other))
            elif not script.is_whole:
                steps = []  # the source does not show its order
            changed = changed._with(rank, replace(script, steps=tuple(steps)))
        return changed

    def at_once(self) -> "Simulation":
        """Let each rank issue all its messages before it waits for one of them."""
        return Simulation(
            {
                rank: replace(
                    script,
                    steps=(
                        Step(tuple(m for step in script.steps for m in step.messages), waits=False),
                        *(step for step in script.steps[: None if script.is_whole else 0]),
                    ),
                )
                for rank, script in self.script_by_rank.items()
            }
        )

    def ends(self) -> bool | None:
        """Whether all messages meet; False: a rank waits forever; None: that is not known."""
        return _Play(self.script_by_rank).ends()

    def _with(self, rank: Rank, script: Script) -> "Simulation":
        return Simulation({**self.script_by_rank, rank: script})


@dataclass
class _Play:
    """The messages that ranks have called and that have met no other end so far."""

    scripts: Mapping[Rank, Script]
    position: dict[Rank, int] = field(default_factory=dict)
    unmet: dict[int, Message] = field(default_factory=dict)  #: by identity
    #: The same by kind and channel, the oldest first.
    unmet_by_channel: dict[Hashable, list[Message]] = field(default_factory=dict)
    issued: set[int] = field(default_factory=set)  #: by identity
    is_certain: bool = True

    def ends(self) -> bool | None:
        while self._advances() or self._hopes():
            pass
        if any(self.position[rank] < len(script.steps) for rank, script in self.scripts.items()):
            return False
        return True if self.is_certain and not self.unmet else None

    def _advances(self) -> bool:
        """Let each rank go on as far as it can; return whether one did."""
        before = dict(self.position), len(self.issued), len(self.unmet)
        for rank, script in self.scripts.items():
            at = self.position.setdefault(rank, 0)
            while at < len(script.steps):
                step = script.steps[at]
                for message in step.messages:
                    self._issue(message)
                if step.waits and any(id(one) in self.unmet for one in step.messages):
                    break
                at += 1
            self.position[rank] = at
        return before != (self.position, len(self.issued), len(self.unmet))

    def _issue(self, message: Message) -> None:
        if id(message) in self.issued:
            return
        self.issued.add(id(message))
        other_kind = "recv" if message.kind == "send" else "send"
        others = self.unmet_by_channel.get((other_kind, message.channel), [])
        if others:
            self.unmet.pop(id(others.pop(0)), None)
            return
        self.unmet[id(message)] = message
        self.unmet_by_channel.setdefault((message.kind, message.channel), []).append(message)

    def _hopes(self) -> bool:
        """Let ranks whose next calls are not known be the other ends of messages."""
        free = {
            rank
            for rank, script in self.scripts.items()
            if self.position[rank] == len(script.steps) and not script.is_whole
        }
        met = [
            each
            for each in self.unmet.values()
            if each.peer in free or each.peer not in self.scripts
        ]
        for message in met:
            self._meet(message)
        self.is_certain = self.is_certain and not met
        return bool(met)

    def _meet(self, message: Message) -> None:
        """Take out a message, which any rank may be the other end of."""
        del self.unmet[id(message)]
        left = self.unmet_by_channel[message.kind, message.channel]
        left[:] = [other for other in left if other is not message]


def simulate(reports: RankReports) -> Simulation:
    """Return the messages that ranks have called, and those that their code calls next.

    Args:
        reports: the ranks.
    """
    return Simulation({rank: _script(rank, reports) for rank in reports.graph.views})


def _message(rank: Rank, operation: Operation) -> Message:
    kind, peer = operation.signature.kind, operation.peer
    return Message(kind, rank, peer, operation.pg_id, operation.tag, operation.record_id)


def _script(rank: Rank, reports: RankReports) -> Script:
    graph, view = reports.graph, reports.graph.views[rank]
    open_ = [
        each
        for each in graph.histories[rank].operations.values()
        if each.signature.kind in MESSAGES and each.state == "scheduled" and each.peer >= 0
        if each.run_id == reports.run_id and graph.absent(rank, each) != ()
    ]
    waits = graph.waits[rank]
    is_over = view.is_over or view.state == "dead"
    waited = {each.record_id for each in (waits[0].operations if waits and not is_over else ())}
    blocking = tuple(_message(rank, each) for each in open_ if each.record_id in waited)
    others = tuple(_message(rank, each) for each in open_ if each.record_id not in waited)
    steps = (Step(others, waits=False), Step(blocking))
    if is_over:
        return Script(steps, is_whole=True)
    is_plain = len(waits) == 1 and rank in graph.stuck and waits[0].thread.is_main
    is_read = is_plain and len(blocking) == len(waited) and len(graph.views) <= _MAX_READ
    if not is_read:
        return Script(steps)
    later, is_whole = _later(rank, reports)
    return Script((*steps, *later), is_whole)


def _later(rank: Rank, reports: RankReports) -> tuple[Sequence[Step], bool]:
    """The messages that a rank calls behind its newest one, and whether it calls nothing else."""
    newest = next(
        each
        for each in reversed(reports.graph.histories[rank].operations.values())
        if each.signature.kind in MESSAGES
    )
    site = newest.site
    code = reports.sources(site) if site.line else None
    if code is None:
        return (), False
    loops = _loops(code, site.line)
    calls = message_calls(site, [rank], reports.graph, reports.run_id, reports.sources)
    own = [call for call in calls if rank in call.peer_by_rank]
    here = [
        call
        for call in own
        if call.kind == newest.signature.kind
        and call.line <= site.line <= (call.node.end_lineno or call.line)
    ]
    if len(here) != 1 or not _is_plain(here[0]):
        return (), False
    steps: list[Step] = []
    call_by_place = {_place(call.node): call for call in own}
    passed = {_place(call.node) for call in calls} - call_by_place.keys()
    if not loops:
        passed |= {_place(call.node) for call in own if _is_made(call, newest, rank, reports)}
    for node in _calls_behind(here[0].node, code, rank, len(reports.graph.views)):
        if _place(node) in passed:
            continue
        call = call_by_place.get(_place(node))
        if call is None or not _is_plain(call) or _loops(code, node.lineno) != loops:
            return steps, False
        message = Message(call.kind, rank, call.peer_by_rank[rank], newest.pg_id)
        steps.append(Step((message,), waits=called(node) not in _STARTS))
    return steps, bool(site.cell) and site.function == "<module>" and not loops


def _place(node: ast.Call) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _is_made(call: MessageCall, newest: Operation, rank: Rank, reports: RankReports) -> bool:
    """Whether a rank has made a call that no loop repeats."""
    return any(
        (each.run_id, each.signature.kind) == (newest.run_id, call.kind)
        and each.site.position[:2] == newest.site.position[:2]
        and each.site.line == call.line
        for each in reports.graph.histories[rank].operations.values()
    )


def _calls_behind(start: ast.Call, code: Code, rank: Rank, size: int) -> Iterator[ast.Call]:
    """The calls that a rank makes behind another one, without those that cannot communicate."""
    function = function_at(code.statements, start.lineno)
    body = code.statements if function is None else function.body
    calls = [
        node
        for node in nodes_of(body)
        if isinstance(node, ast.Call) and _place(node) > _place(start) and may_communicate(node)
    ]
    for node in sorted(calls, key=_place):
        if runs(node, code, rank, size) is not False:
            yield node


def may_communicate(call: ast.Call) -> bool:
    """Return whether a call may send or receive, as far as its name shows."""
    match call.func:
        case ast.Name(id=name):
            return not hasattr(builtins, name)
        case ast.Attribute(value=ast.Name(id="torch")):
            return False
        case ast.Attribute(attr=name):
            return name not in _HARMLESS
        case _:
            return True


def _is_plain(call: MessageCall) -> bool:
    """Whether it is a call with a tensor and the other end only, so in the group of all."""
    named = {keyword.arg for keyword in call.node.keywords} - {"tensor", "dst", "src"}
    return call.argument != "peer" and not named and len(call.node.args) <= _PLAIN_ARGUMENTS


def _loops(code: Code, line: int) -> list[int]:
    """The lines of the loops around a line."""
    return [branch.line for branch in code.branches(line) if branch.kind == "loop"]
