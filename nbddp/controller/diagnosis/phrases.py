"""The English of the diagnosis: phrases about ranks, operations and lines, from facts.

Runs in: the notebook's process. Pure. No code reads a sentence back: code that wants to know what
a rank does reads the `verb` of its `Predicate`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from nbddp.controller.diagnosis.control_flow import Branch
from nbddp.controller.diagnosis.exit_phrase import ExitPhrase
from nbddp.wire.flight_recorder import (
    STORE_WAIT,
    ExceptionLine,
    Operation,
    Signature,
    Site,
    shortened,
)
from nbddp.wire.flight_recorder.matching import MESSAGES
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet, ranks_by_value

#: The phrase about one rank, and that about several.
Forms: TypeAlias = tuple[str, str]
#: Different calls in a sentence.
_MAX_CALLS = 4
#: Characters of a line of code in a sentence.
MAX_SOURCE = 60
#: Keys of the store in a sentence.
_MAX_KEYS = 3
#: Operations that a thread waits for.
_MAX_WAITS = 3


class RankVerb(Enum):
    """The verb of a sentence about a rank: what it does, or how it ended."""

    WAITS = ("waits", "wait")
    RUNS = ("runs", "run")
    IMPORTS = ("imports", "import")  #: a library
    IS = ("is", "are")  #: at a prompt, stopped, being started
    DOES_NOT_ANSWER = ("does not answer", "do not answer")
    TAKES_NO_PART = ("takes no part in this cell", "take no part in this cell")
    IS_FRESH = (
        "is a fresh process that has run nothing yet",
        "are fresh processes that have run nothing yet",
    )
    MAKES_GROUPS = ("makes its groups again", "make their groups again")
    HAS_FINISHED = ("has finished the cell", "have finished the cell")
    RAISED = ("raised", "raised")
    CALLED = ("called", "called")
    LEFT_DEBUGGER = ("left the debugger", "left the debugger")
    EXITED = ("exited", "exited")
    LOST = ("was lost", "were lost")  #: with its node: perhaps its process still runs
    NONE = ("", "")  #: `Predicate.rest` has a verb of its own


#: `RankVerb.WAITS` with a duration.
_HAS_WAITED: Forms = ("has waited", "have waited")
#: The end of a sentence about ranks that took part in no operation of the cell; of one that has
#: named the cell.
CALLED_NONE = " and called no collective in this cell"
CALLED_NONE_IN_IT = " and called no collective in it"


@dataclass(frozen=True)
class Predicate:
    """The predicate of a sentence about ranks; its verb agrees with their number.

    >>> Predicate(RankVerb.WAITS, " in all_reduce #17").describe(2)
    'wait in all_reduce #17'
    """

    verb: RankVerb
    rest: str = ""  #: follows the verb, with the blank or comma between: `` in all_reduce #17``
    aside: Forms = ("", "")  #: ``; its last operation was all_reduce #16``
    peer: Rank = -1  #: the other end of the message that ``rest`` is about; -1: none
    #: ``rest`` outside of tables, with no number of an operation; empty: as it is.
    spoken: str = field(default="", compare=False)
    #: Writes ``rest`` with another name for ``peer``; None: there is no peer.
    rest_with: Callable[[str], str] | None = field(default=None, compare=False)

    @classmethod
    def of_end(cls, phrase: ExitPhrase) -> "Predicate":
        """Return the predicate of a rank that ended: ``exited with ...``, ``was lost: ...``."""
        return cls(RankVerb.LOST if phrase.was_lost else RankVerb.NONE, phrase.rest)

    def with_peer(self, name: str) -> "Predicate":
        """Return the same with another name for the other end: ``recv from the next rank``."""
        if self.rest_with is None:
            return self
        return replace(self, rest=self.rest_with(name), peer=-1, rest_with=None)

    def describe(self, count: int, *, has_duration: bool = False) -> str:
        """The text that follows the names of ``count`` ranks.

        Args:
            count: the number of ranks.
            has_duration: `` for 3.2 s`` follows: ``has waited in all_reduce #17``.
        """
        return self.main_clause(count, has_duration=has_duration) + self.aside[count != 1]

    def main_clause(self, count: int = 1, *, has_duration: bool = False) -> str:
        """The same text without `aside`."""
        is_wait = self.verb is RankVerb.WAITS
        forms: Forms = _HAS_WAITED if is_wait and has_duration else self.verb.value
        return forms[count != 1] + self.rest

    def __str__(self) -> str:
        return self.describe(1)


# --- places --------------------------------------------------------------------------------------


def place(site: Site | None) -> str:
    """A line of code, quoted; empty if it is not known."""
    if site is None or not site.line:
        return ""
    return f"{site}: `{site.source}`" if site.source else str(site)


def quote(operation: Operation) -> str:
    """The place of the call, with the line."""
    return place(operation.site) or "an unknown line"


def seconds(amount_s: float) -> str:
    """``3.2 s``, ``75 s``: always in seconds, other than the durations of tables and cards."""
    return f"{amount_s:.1f} s" if amount_s < 10 else f"{amount_s:.0f} s"


# --- operations and ranks ------------------------------------------------------------------------


def describe_call(signature: Signature, fields: Iterable[str]) -> str:
    """A call with those arguments that ``fields`` name: ``all_reduce of float32[4]``.

    Args:
        signature: of the call.
        fields: names of fields of `Signature`; others do not appear in the text.
    """
    return f"{signature.op}{describe_arguments(signature, fields)}"


def describe_arguments(signature: Signature, fields: Iterable[str]) -> str:
    """The arguments of a call: `` of float32[4]``; see `describe_call`."""
    wanted = set(fields)
    text = ""
    sized = {
        "input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "tensors", "strides",
        "places",
    }  # fmt: skip
    if wanted & sized:
        is_output = wanted & {"output_sizes", "output_dtypes"} or not signature.input_sizes
        sizes = signature.output_sizes if is_output else signature.input_sizes
        dtypes = signature.output_dtypes if is_output else signature.input_dtypes
        shown = [
            f"{dtype}{list(size)}" if size else f"a scalar ({dtype})"
            for dtype, size in zip(dtypes[:3], sizes[:3], strict=False)
        ]
        more = f" and {signature.tensors - 3} more" if signature.tensors > 3 else ""
        text += f" of {', '.join(shown) or 'nothing'}{more}"
    if "strides" in wanted:
        strides = ", ".join(map(str, signature.strides[:3]))
        text += f" with strides {strides}" if strides else ", contiguous"
    if "places" in wanted:
        text += _places(signature)
    if "root" in wanted:
        text += f" with {root_argument(signature)}={signature.root}"
    if "reduce_op" in wanted:
        text += f" with {signature.reduce_op}"
    if wanted & {"input_splits", "output_splits"}:
        text += f" with input_splits={list(signature.input_splits)}"
        text += f", output_splits={list(signature.output_splits)}"
    return text


def _places(signature: Signature) -> str:
    """`` on meta``, ``, sparse_coo``, ``, dense``: layout or device of the tensors of a call."""
    named = [place or "dense" for place in signature.places] or ["dense"]
    return "".join(
        f", {place}" if place == "dense" or place.startswith("sparse") else f" on {place}"
        for place in named
    )


def describe_operation(operation: Operation, fields: Iterable[str]) -> str:
    """A call with its origin: ``all_reduce of float32[4] (gradients)``; see `describe_call`."""
    return f"{describe_call(operation.signature, fields)}{origin_of(operation)}"


def origin_of(operation: Operation) -> str:
    """`` (gradients)``, behind the name of a call; empty if the user's code called it itself."""
    return f" ({operation.origin})" if operation.origin else ""


def root_argument(signature: Signature) -> str:
    """The argument of torch.distributed that names the root of a collective: ``src``, ``dst``."""
    return "src" if signature.op in ("broadcast", "scatter") else "dst"


def describe_calls(
    calls: Mapping[Rank, Operation], fields: Collection[str], culprits: RankSet = NO_RANKS
) -> str:
    """``rank 2 called broadcast, ranks 0-1 called all_reduce``: first culprits, then few ranks.

    Args:
        calls: calls that belong together.
        fields: see `describe_call`.
        culprits: ranks whose calls come first.
    """
    texts = {rank: describe_operation(call, fields) for rank, call in calls.items()}
    variants = sorted(
        (not set(ranks) <= set(culprits), len(ranks), ranks, text)
        for text, ranks in ranks_by_value(texts).items()
    )
    parts = [f"{ranks.describe()} called {text}" for *_, ranks, text in variants[:_MAX_CALLS]]
    return ", ".join([*parts, *["others something else"] * (len(variants) > _MAX_CALLS)])


def describe_handled(handled_by_rank: Mapping[Rank, ExceptionLine], then: Forms) -> list[str]:
    """The exceptions that ranks handled: ``rank 1 raised ValueError: boom (cell [3], line 2)``.

    Args:
        handled_by_rank: the exceptions.
        then: what the ranks did next, with a blank in front.
    """
    text_by_rank = {rank: str(handled) for rank, handled in handled_by_rank.items()}
    texts = []
    for ranks in ranks_by_value(text_by_rank).values():
        handled = handled_by_rank[ranks.ranks[0]]
        predicate = f"raised {handled}"
        if handled.is_interrupt:
            place_text = f" ({handled.place})" if handled.place else ""
            predicate = f"{ranks.verb('was', 'were')} interrupted{place_text}"
        texts.append(f"{ranks.describe()} {predicate}{ranks.verb(*then)}")
    return texts


def peer_of(operations: Collection[Operation]) -> Rank:
    """The other end, if a rank waits for one message only; else -1."""
    open_ones = [each for each in operations if each.state == "scheduled"]
    is_message = len(open_ones) == 1 and open_ones[0].signature.kind in MESSAGES
    return open_ones[0].peer if is_message else -1


def waits_for(
    operations: Iterable[Operation],
    name: Callable[[Operation, str], str],
    *,
    needs_all: bool,
    spoken: Callable[[Operation], str] | None = None,
) -> Predicate:
    """``waits in all_reduce #17``: a thread that waits for operations.

    Args:
        operations: those that it waits for; ended ones are left out.
        name: names an operation, with a name for the other end of a message; empty: its rank.
        needs_all: see `nbddp.controller.diagnosis.wait_graph.Waiting.needs_all`.
        spoken: names an operation outside of tables; None: as ``name``.

    Returns:
        The predicate; its `with_peer` gives the other end of a message another name.
    """
    open_ones = [each for each in operations if each.state == "scheduled"]
    preposition = "in" if needs_all and len(open_ones) < 2 else "for"
    inside = "" if needs_all else "inside torch "

    def rest(name: Callable[[Operation], str], preposition: str) -> str:
        if [each.signature.op for each in open_ones] == [STORE_WAIT]:
            # The user may have called `get`.
            return f" for {describe_keys(open_ones[0].signature.keys)}"
        names = ", ".join(map(name, open_ones[:_MAX_WAITS])) or "an operation"
        more = len(open_ones) - _MAX_WAITS
        return f" {preposition} {names}{f' and {more} more' if more > 0 else ''}"

    def rest_with(peer: str) -> str:
        return rest(lambda operation: name(operation, peer), f"{inside}{preposition}")

    peer = peer_of(open_ones)
    return Predicate(
        RankVerb.WAITS,
        rest_with(""),
        peer=peer,
        rest_with=None if peer < 0 else rest_with,
        spoken=rest(spoken, preposition) if spoken else "",
    )


def describe_keys(keys: Sequence[str]) -> str:
    """``the key 'ready'``, ``the keys 'a', 'b', 'c' and 2 more``: keys of the store."""
    more = f" and {len(keys) - _MAX_KEYS} more" if len(keys) > _MAX_KEYS else ""
    return f"the key{'s' * (len(keys) > 1)} {', '.join(map(repr, keys[:_MAX_KEYS]))}{more}"


def last_operation(name: str, group: str = "") -> Forms:
    """The aside on the last operation of ranks that have ended.

    Args:
        name: of the operation.
        group: names its group, if they have called another one after it in another group.
    """
    place_text = f" in {group}" if group else ""
    text = f"last operation{place_text} was {name}"
    return f"; its {text}", f"; their {text}"


def left_to_timeout(ranks: RankSet, timeout_ms: int | None) -> str:
    """The clause about ranks that have raised by their own timeout; empty if there are none."""
    if not ranks:
        return ""
    limit = "" if timeout_ms is None or len(ranks) > 1 else f" of {seconds(timeout_ms / 1e3)}"
    own = ranks.verb("was left to its own timeout", "were left to their own timeouts")
    return f"{ranks.describe()} {own}{limit} and {ranks.verb('has', 'have')} raised; "


def iteration(operation: Operation, names: Iterable[str] | None = None) -> str:
    """``epoch 0, step 3`` or ``i = 3``; only the variables ``names``, if they are given."""
    variables = operation.iteration
    return ", ".join(str(each) for each in variables if names is None or each.name in names)


def rank_at(distance: int) -> str:
    """The other end of a message, by its distance: ``the next rank``, ``the rank 32 below``."""
    match distance:
        case 1:
            return "the next rank"
        case -1:
            return "the rank before"
        case _:
            return f"the rank {abs(distance)} {'above' if distance > 0 else 'below'}"


def capitalized(text: str) -> str:
    """``rank 1``: ``Rank 1``; the other letters stay."""
    return text[:1].upper() + text[1:]


def subject(ranks: RankSet) -> str:
    """``Rank 2`` or ``Ranks 0,2-3``: the subject at the beginning of a sentence."""
    return ranks.describe().capitalize()


def describe_branch(branch: Branch) -> str:
    r"""``\`if rank == 0:\` (line 3)``."""
    if branch.other is not None:
        return f"the `else` of {describe_branch(branch.other)}"
    return f"{quote_branch(branch)} (line {branch.line})"


def quote_branch(branch: Branch) -> str:
    r"""``\`if rank == 0:\```: its first line."""
    return f"`{shortened(branch.source, MAX_SOURCE)}`"
