"""The description of a rank's operations that ranks, agents and the diagnosis share.

Runs in: every process. Pure. Field names are those of PyTorch's Flight Recorder (``record_id``,
``collective_seq_id``, ``p2p_seq_id``, ``input_sizes``, ``time_created_ns``, ...) wherever the
meaning is the same; see ``torch/csrc/distributed/c10d/FlightRecorder.hpp``.

Ranks are always global ranks. Times are `time.monotonic_ns`, comparable on one machine.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, get_args

import msgspec

from nbddp.wire.flight_recorder import origins

#: ``scheduled``: issued; ``completed``: seen to have ended; ``failed``: ended with an error.
OperationState: TypeAlias = Literal["scheduled", "completed", "failed"]

#: The end of an operation, as users see it. ``interrupted``: the user interrupted it; ``freed``:
#: because of other ranks: nbddp ended it, it does not match, or the connection was lost;
#: ``stopped``: it has not begun, and waits for the user at a break point.
Ending: TypeAlias = Literal["open", "done", "failed", "interrupted", "freed", "stopped"]

#: The kind decides which operations match.
#: ``collective``: every member of the group takes part, in the order of ``collective_seq_id``.
#: ``send``, ``recv``: one message between two ranks. ``creation``: the group itself is created,
#: each member takes part. ``store``: waits for ``keys`` that any process may set.
OperationKind: TypeAlias = Literal["collective", "send", "recv", "creation", "store"]


#: `Signature.op` of a wait for the store inside ``init_process_group``.
RENDEZVOUS: Final = "init_process_group"
#: `Signature.op` of a wait for a process that serves a store, or for its clients; ``keys`` are its
#: address, and the number of clients.
CONNECTION: Final = "TCPStore"

#: `Signature.op` of a question that a loop of the user asks the store again and again, and that has
#: the same answer each time. The loop waits for the key in ``keys``; no thread waits in C++.
StoreQuestion: TypeAlias = Literal["store.check", "store.get", "store.add"]
STORE_WAIT: Final = "store.wait"  #: the wait for keys, in `Store.wait` and in `Store.get`
STORE_QUESTIONS: Final = frozenset(get_args(StoreQuestion))

#: A rank that uses more of a processor than this while no cell runs is not idle.
BUSY_PERCENT: Final = 20

#: The number of a cell without one: it was typed in `nbddp console`.
CONSOLE = -1


def shortened(text: str, limit: int = 200) -> str:
    """Return a name that the user gave, cut to a size that messages and records can hold."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def cell_name(number: int) -> str:
    """Return ``cell [3]``, or ``console cell`` for the numbers `CONSOLE` and 0."""
    return f"cell [{number}]" if number > 0 else "console cell"


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Base of the descriptions: immutable, without cycles, unknown fields are errors."""


class Site(_Part, frozen=True):
    """A line of code."""

    file: str = ""  #: as in tracebacks; empty: not known
    line: int = 0  #: in that file; for a cell, as the notebook counts its lines
    function: str = ""  #: ``<module>`` at the top of a cell or file
    source: str = ""  #: the text of that line, stripped
    cell: int = 0  #: execution count of the cell, or `CONSOLE`; 0: not a line of a cell
    #: Of a line that issued an operation: the feature of a library that called it, such as
    #: ``ddp-gradients``, see `nbddp.wire.flight_recorder.origins`. Empty: the line did itself.
    origin: str = ""
    call: str = ""  #: text of the call in the line, ``loss.backward()``, if there is an origin

    @property
    def position(self) -> tuple[str, int, int]:
        """Its file, cell and line: equal for calls in one line, also of different functions."""
        return self.file, self.cell, self.line

    @property
    def place(self) -> str:
        """``cell [3], line 2``."""
        return f"{cell_name(self.cell) if self.cell else self.file or '?'}, line {self.line}"

    def __str__(self) -> str:
        """Return ``cell [3], line 2, in step``."""
        inside = "" if self.function in ("", "<module>") else f", in {self.function}"
        return f"{self.place}{inside}"


class ExceptionLine(_Part, frozen=True):
    """An exception in a line."""

    name: str
    text: str = ""  #: the first line of its message
    site: Site | None = None  #: the innermost line of a cell in its traceback; None: there is none

    @property
    def is_interrupt(self) -> bool:
        """Whether the user or nbddp interrupted the code: it is no bug."""
        return self.name == "KeyboardInterrupt"

    @property
    def summary(self) -> str:
        """``ValueError: bad batch``."""
        return f"{self.name}: {self.text}" if self.text else self.name

    @property
    def place(self) -> str:
        """``cell [3], line 2``; empty if it is not known."""
        return "" if self.site is None else self.site.place

    def __str__(self) -> str:
        """Return ``ValueError: bad batch (cell [3], line 2)``."""
        return f"{self.summary} ({self.place})" if self.place else self.summary


class Signature(_Part, frozen=True):
    """The properties that must match on all members of a group, and others worth showing."""

    kind: OperationKind
    op: str  #: its name in the API: ``all_reduce``, ``broadcast``, ``send``, ``new_group``, ...
    input_sizes: tuple[tuple[int, ...], ...] = ()  #: shapes of the input tensors; at most 16
    input_dtypes: tuple[str, ...] = ()  #: ``float32``, ...
    output_sizes: tuple[tuple[int, ...], ...] = ()  #: shapes of the output tensors; at most 16
    output_dtypes: tuple[str, ...] = ()
    tensors: int = 0  #: number of input tensors
    nbytes: int = 0  #: size of all input tensors
    reduce_op: str = ""  #: ``SUM``, ``MAX``, ...
    root: int = -1  #: source or destination of a rooted collective; -1: none
    input_splits: tuple[int, ...] = ()  #: of all_to_all_single
    output_splits: tuple[int, ...] = ()
    #: Strides of the tensors, if the elements are sent in the order of memory and that is not the
    #: order of the indices; strides of dimensions of size 1 are 0. Empty: all are contiguous.
    strides: tuple[tuple[int, ...], ...] = ()
    #: Keys that a store operation waits for; members of a group that is being created.
    keys: tuple[str, ...] = ()
    #: Layouts or devices of the tensors: ``sparse_coo``, ``meta``. Empty: all are dense, on the CPU
    #: or on a device whose tensors the group can mix with those of the CPU.
    places: tuple[str, ...] = ()


class MessageCount(_Part, frozen=True):
    """The number of messages of one kind that a rank has issued in a group.

    A message that a receive from any source got counts for its sender, too.
    """

    direction: str  #: ``send`` or ``recv``
    peer: int  #: -1: any source
    tag: int
    count: int  #: the number of the last one, see `Operation.p2p_seq_id`


def group_name_of(pg_id: str) -> str:
    """Return torch's name of a group, also if the group is gone or is being created."""
    return pg_id.partition("@")[0].partition(":")[0]


def group_counter_of(pg_id: str) -> str:
    """Return what torch counts a group that is being created in: one process group of all ranks."""
    return pg_id.partition("@")[2].partition("@")[0]


#: The description that torch gives the default group.
DEFAULT_GROUP: Final = "default_pg"
#: More members than any group has: a description with more makes no sense, and has none.
_MAX_MEMBERS = 1 << 20


class RankSpan(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Ranks at equal distances: ``first``, ``first + step``, and so on."""

    first: Annotated[int, msgspec.Meta(ge=0)]
    count: Annotated[int, msgspec.Meta(ge=1)]
    step: int = 1


def spans_of(ranks: Iterable[int]) -> tuple[RankSpan, ...]:
    """Describe ranks, in their order, by few spans if there is a rule.

    >>> spans_of(range(8192))
    (RankSpan(first=0, count=8192, step=1),)
    >>> spans_of([0, 4, 8, 1])
    (RankSpan(first=0, count=3, step=4), RankSpan(first=1, count=1, step=1))
    """
    spans: list[RankSpan] = []
    ordered = tuple(ranks)
    at = 0
    while at < len(ordered):
        end = at + 1
        step = ordered[end] - ordered[at] if end < len(ordered) else 1
        while end < len(ordered) and ordered[end] - ordered[end - 1] == step:
            end += 1
        spans.append(RankSpan(ordered[at], end - at, step if end - at > 1 else 1))
        at = end
    return tuple(spans)


@lru_cache(maxsize=4096)
def ranks_in(spans: tuple[RankSpan, ...]) -> tuple[int, ...]:
    """Return the ranks of some spans: the same object for the same spans."""
    if sum(span.count for span in spans) > _MAX_MEMBERS:
        return ()
    return tuple(span.first + number * span.step for span in spans for number in range(span.count))


class GroupInfo(_Part, frozen=True):
    """One process group."""

    #: Equal on all members, never used for another group, kept when it is rebuilt. It begins with
    #: the name: ``0:5f1c9e`` is a group, ``1@0:5f1c9e@4a17b156`` one that is being created.
    pg_id: str
    name: str  #: as torch names it: ``0`` is the default group of a fresh pool
    desc: str = ""  #: ``default_pg``, or the user's ``group_desc``
    #: Its members. Every rank describes its groups, so a list of all of them would cost the square
    #: of their number.
    spans: tuple[RankSpan, ...] = ()
    backend: str = ""  #: ``gloo``, ``nccl``, ``cpu:gloo,cuda:nccl``
    timeout_ms: int = 0
    collective_seq_id: int = 0  #: collectives issued so far by this rank; the first is 1
    p2p_seq_id: int = 0  #: the highest number of a message so far
    p2p_base: int = 0  #: messages count from here, since the group was rebuilt
    messages: tuple[MessageCount, ...] | None = None  #: issued by this rank; None: not known
    cell: int = 0  #: number of the cell that made it; 0: none, or a cell that ran again
    run_id: str = ""  #: of the cell in which it was made, or made again; empty: in none

    @classmethod
    def of(
        cls, pg_id: str, name: str, desc: str = "", *, ranks: Iterable[int] = (), **fields: Any
    ) -> Self:
        """Make the description of a group with these members."""
        return cls(pg_id=pg_id, name=name, desc=desc, spans=spans_of(ranks), **fields)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Its members, in their order; the same object for groups with the same members."""
        return ranks_in(self.spans)

    @property
    def is_default(self) -> bool:
        """Whether it is the default group."""
        return self.desc == DEFAULT_GROUP


#: Names of so few letters need an equals sign.
_SHORT_NAME = 2


class LoopVariable(_Part, frozen=True):
    """The variable of a loop that counts, in one iteration."""

    name: str
    value: int

    def __str__(self) -> str:
        """``step 3``; ``i = 3``, as a short name does not read well without the sign."""
        if self.name == "_":
            return f"iteration {self.value}"
        return f"{self.name} {'= ' if len(self.name) <= _SHORT_NAME else ''}{self.value}"


#: The cause of a failed operation. ``interrupted``: the user or nbddp interrupted its thread;
#: ``freed``: nbddp ended it; ``lost``: the connection to another member was lost; ``collective``:
#: another `nbddp.errors.CollectiveError`, so the others have made, or expect, the same call;
#: ``raised``: any other exception; ``stopped``: it does not match, and waits for the user at a
#: break point; ``replaced``: its call was made again there, and another operation stands for it.
FailureKind: TypeAlias = Literal[
    "raised", "interrupted", "freed", "lost", "collective", "stopped", "replaced"
]


class Failure(_Part, frozen=True):
    """The failure of an operation."""

    kind: FailureKind
    text: str = ""  #: the class and message of the exception; no code reads it


class Operation(_Part, frozen=True):
    """One operation of one rank."""

    record_id: int  #: counts up per process, from 1
    pg_id: str  #: id of its group, see `GroupInfo`; empty for store operations
    signature: Signature
    state: OperationState
    collective_seq_id: int = 0  #: in its group, from 1; 0: not a collective
    p2p_seq_id: int = 0  #: of messages to or from this peer with this tag and direction, from 1
    peer: int = -1  #: the other end of a message; -1: none, or any source
    tag: int = 0
    async_op: bool = False
    time_created_ns: int = 0  #: when the rank issued it
    time_completed_ns: int = 0  #: when the rank noticed its end; 0: not yet
    waited_ns: int = 0  #: how long a thread of the rank was blocked for it
    site: Site = Site()
    failure: Failure | None = None  #: what failed; None: nothing
    run_id: str = ""  #: of the cell; empty: issued between cells
    timeout_ms: int = 0  #: its timeout, after which it fails; 0: not known
    thread: int = 0  #: identifier of the thread that issued it, as `threading.get_ident` gives it
    #: Variables of counting loops around its line, and of the lines that called it: the outermost
    #: first, at most two, such as ``epoch`` with 0 and ``step`` with 3.
    iteration: tuple[LoopVariable, ...] = ()

    @property
    def ending(self) -> Ending:
        """Whether it is done, open, or how it failed."""
        if self.state != "failed":
            return "done" if self.state == "completed" else "open"
        match None if self.failure is None else self.failure.kind:
            case "interrupted" | "freed" | "stopped" as kind:
                return kind
            case "collective":
                return "freed"  # the word of the card
            case _:
                return "failed"

    @property
    def is_replaced(self) -> bool:
        """Whether its call was left out, or made again: then another operation stands for it."""
        return self.failure is not None and self.failure.kind == "replaced"

    @property
    def is_needed(self) -> bool:
        """Whether a library has called it, and reads sizes or an order from its result."""
        return origins.needs_result(self.site.origin)

    @property
    def is_rendezvous(self) -> bool:
        """Whether ``init_process_group`` waits for other ranks; ``keys`` name those ranks.

        See ``rank/torch_private/rendezvous.py``.
        """
        return self.signature.kind == "store" and self.signature.op == RENDEZVOUS

    @property
    def origin(self) -> str:
        """The origin in a few words: ``gradients``; empty: the user's code called it itself."""
        return origins.short_phrase(self.site.origin) if self.site.origin else ""

    @property
    def is_by_library(self) -> bool:
        """Whether no line of the user's code names this operation."""
        return bool(self.site.origin) and not origins.is_function(self.site.origin)

    def label(
        self, *, is_brief: bool = False, has_tag: bool = True, has_call: bool = True, peer: str = ""
    ) -> str:
        """Return the name of the operation, as all texts show it.

        ``all_reduce #17``, ``gradient averaging in loss.backward() (all_reduce #17)``, ``send to
        rank 2 (tag 3)``, ``recv from any rank``, ``new_group``, ``store.wait('key')``.

        Args:
            is_brief: for a table: ``send to 2``, ``all_reduce #17 (gradients)``, and long keys are
                cut.
            has_tag: the name of a message includes its tag, if it has one; never if ``is_brief``.
            has_call: the name includes the user's call, if a library called the operation. False:
                the line stands beside it.
            peer: another name for the other end of a message: ``send to the next rank``.
        """
        name = self._name(is_brief=is_brief, has_tag=has_tag, peer=peer)
        site = self.site
        if not site.origin or self.signature.kind == "store":
            return name
        if is_brief:
            return f"{name} ({origins.short_phrase(site.origin)})"
        return f"{origins.in_call(site.origin, site.call if has_call else '')} ({name})"

    def in_words(self, ordinal: int | None, *, has_call: bool = True) -> str:
        """Return the name of a collective for a sentence: its place in the cell, then its number.

        ``all_reduce``, ``the 3rd all_reduce (#17)``, ``gradient averaging in loss.backward() (the
        3rd all_reduce, #17)``.

        Args:
            ordinal: its place among the same calls of the cell; 0: it is the only one; None: the
                place is not known, and the number stays.
            has_call: see `label`.
        """
        if ordinal is None or self.signature.kind != "collective":
            return self.label(has_call=has_call)
        name = f"the {nth(ordinal)} {self.signature.op}" if ordinal else self.signature.op
        number = f"#{self.collective_seq_id}"
        if not self.site.origin:
            return f"{name} ({number})" if ordinal else name
        phrase = origins.in_call(self.site.origin, self.site.call if has_call else "")
        return f"{phrase} ({name}, {number})" if ordinal else phrase

    def _name(self, *, is_brief: bool, has_tag: bool, peer: str) -> str:
        signature = self.signature
        match signature.kind:
            case "send" | "recv":
                rank = "" if is_brief else "rank "
                any_rank = "any" if is_brief else "any rank"
                peer = peer or (any_rank if self.peer < 0 else f"{rank}{self.peer}")
                preposition = "to" if signature.kind == "send" else "from"
                tag = f" (tag {self.tag})" if self.tag and has_tag and not is_brief else ""
                return f"{signature.op} {preposition} {peer}{tag}"
            case "store" if self.is_rendezvous:
                return signature.op if is_brief else f"{signature.op} for {signature.keys[0]}"
            case "store":
                keys = ", ".join(map(repr, signature.keys[:3]))
                keys += ", ..." if len(signature.keys) > 3 else ""
                return f"{signature.op}({shortened(keys, 24) if is_brief else keys})"
            case "collective" | "creation":
                number = self.collective_seq_id
                return f"{signature.op} #{number}" if number else signature.op


def nth(number: int) -> str:
    """``1st``, ``12th``, ``23rd``."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"


#: The way in which a thread is blocked.
#: ``operation``: in the wait for the named operations. ``pending``: inside torch (autograd engine,
#: a future), asleep without using the processor, while these operations are not complete.
WaitKind: TypeAlias = Literal["operation", "pending"]


class Wait(_Part, frozen=True):
    """A thread waits until **all** of these operations are complete."""

    kind: WaitKind
    record_ids: tuple[int, ...]
    since_ns: int


#: A member in `Signature.keys` of a group whose members are not known before it exists.
UNKNOWN_MEMBER: Final = "?"
#: `ThreadLook.innermost` of a thread that waits for the user's input; see
#: `nbddp.rank.cells.stdin`.
AT_PROMPT: Final = "_wait_for_answer"
#: `ThreadLook.innermost` of a thread that debugpy has stopped; a function of pydevd.
AT_BREAKPOINT: Final = "_do_wait_suspend"
WAITS_FOR_USER: Final = {AT_PROMPT: "at a prompt", AT_BREAKPOINT: "at a breakpoint"}
#: Name of the thread that runs a widget's callback while a cell runs.
CALLBACK_THREAD: Final = "a widget's callback"
#: Name of the exception that `pdb` raises when the user leaves it with ``q``.
LEFT_DEBUGGER: Final = "BdbQuit"


class ThreadLook(_Part, frozen=True):
    """One thread of a rank that could issue operations; nbddp's own are left out."""

    name: str
    is_main: bool
    wait: Wait | None  #: None: it is not blocked in an operation that is known
    #: It waits, but not for an operation, and cannot continue before another thread of the same
    #: process acts (an idle worker of a thread pool). Never true of the main thread.
    is_dormant: bool = False
    #: Python lines, innermost first, only those outside torch, IPython and nbddp; at most 16.
    stack: tuple[Site, ...] = ()
    innermost: str = ""  #: function that runs now, in any file; C functions have no frame
    handling: ExceptionLine | None = None  #: the exception that it handles now
    importing: str = ""  #: the module of a library that the main thread imports
    #: Share of a processor that it uses while no cell runs; None: it was not measured.
    cpu_percent: int | None = None

    @property
    def is_left(self) -> bool:
        """Whether it goes on between cells: a thread of the user's code, or one that computes."""
        is_of_user = (
            any(line.cell for line in self.stack) or (self.cpu_percent or 0) >= BUSY_PERCENT
        )
        return is_of_user and not (self.is_main or self.is_dormant or self.name == CALLBACK_THREAD)

    def left_text(self) -> str:
        """Return ``thread 'a' of an earlier cell still runs, at cell [1], line 3 (100 % CPU)``."""
        line = next((line for line in self.stack if line.cell), None)
        place = f", at {line}" if line is not None else ""
        share = "" if self.cpu_percent is None else f" ({round(self.cpu_percent, -1)} % CPU)"
        return f"thread {self.name!r} of an earlier cell still runs{place}{share}"


#: ``running``: the cell runs. ``idle``: nothing runs. ``callback``: a widget's callback runs, and
#: no cell does. ``reforming``: groups are rebuilt.
Activity: TypeAlias = Literal["running", "idle", "callback", "reforming"]


class RankLook(_Part, frozen=True):
    """The state of one rank at one moment, as the rank itself reports it.

    If ``version`` is equal in two looks, then nothing of this has changed in between.
    """

    rank: int
    pid: int
    activity: Activity
    version: int  #: counts every operation issued, completed, waited for; cells begun and ended
    time_ns: int
    #: Identity of the clock `time.monotonic_ns`: equal for ranks of one machine. Empty: not known.
    clock: str = ""
    run_id: str = ""
    threads: tuple[ThreadLook, ...] = ()
    groups: tuple[GroupInfo, ...] = ()
    #: The open ones and the last ones (`DescribeRank.last`), the newest last.
    operations: tuple[Operation, ...] = ()
    group_count: int = 0  #: torch's counter for the names of groups
    is_fresh: bool = False  #: it took the place of a rank that died; its variables are new
    has_children: bool = False  #: processes that it started live, and may act in its place
    gpu_bytes: int = 0  #: torch's memory on the device, if the request asked for it
    #: Age of the latest check of a store key by the thread that has waited longest for one, if the
    #: key was still missing. None: no thread waits, or none has checked yet.
    key_check_age_ns: int | None = None
    cpu_percent: int = 0  #: share of a processor that the process uses while no cell runs
    set_keys: tuple[str, ...] = ()  #: the last keys of a store that the user's code has set

    @property
    def main(self) -> ThreadLook | None:
        """The thread that runs cells."""
        return next((thread for thread in self.threads if thread.is_main), None)


class Mismatch(_Part, frozen=True):
    """Operations of two ranks that do not match; seen before any data moved."""

    rank: int
    peer: int
    mine: Operation
    theirs: Operation
    fields: tuple[str, ...]  #: names of the `Signature` fields that differ


#: The modulus of `GroupMark.far_messages`.
FAR_MESSAGES: Final = 2**63


class EndedReduce(_Part, frozen=True):
    """The newest ``reduce`` of a cell to one root that has ended on a rank."""

    root: int  #: its rank
    collective_seq_id: int


class GroupMark(_Part, frozen=True):
    """The position of a rank in one group at the end of a cell."""

    pg_id: str
    collective_seq_id: int
    digest: int  #: of the signatures of all collectives so far: equal on all members
    open: int = 0  #: operations issued and not complete
    is_broken: bool = False  #: nbddp freed it, or an operation failed in it: it must be rebuilt
    #: Those of Gloo, which adds up in the tensors of ranks that are not the root.
    reduces: tuple[EndedReduce, ...] = ()
    #: Of the messages of the cell with ranks of other nodes: the fingerprints of those that it has
    #: sent less those of those that it has received, modulo `FAR_MESSAGES`. Where all match, they
    #: add up to 0 over all ranks.
    far_messages: int = 0
