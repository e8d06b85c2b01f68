"""Rules for matching operations: differences between ranks that are errors, by operation.

Runs in: every process. Pure.

One table, `RULES`, lists the fields that must be equal on all members of a group. Its users:

    rank      `hard_key`, `full_key` -> fingerprints: compared before data moves, after the cell
              `compare`              -> fields that differ, if fingerprints do (also ``--check``)
    notebook  `compare`              -> the diagnosis: blocked operations, and notices after a cell

An error is raised: before data moves on one machine and with ``--check``, else after the cell. A
warning is printed. An error either *blocks*, since the operation hangs, aborts or reads memory
beyond its data, or the operation ends with a wrong result. Trials with Gloo decided which; a
difference that blocks at some sizes only counts as blocking. Only blocking differences are part of
a proof that a rank cannot continue.
"""

import math
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, TypeAlias

from nbddp.wire.flight_recorder.schema import Signature

_Shapes: TypeAlias = tuple[tuple[int, ...], ...]
_DIGITS: Final = re.compile(r"\d+")


class Verdict(Enum):
    """The consequence of a difference."""

    BLOCKS = "error: the operation never ends, or not well"
    WRONG = "error: the operation ends with a wrong result"
    WARNING = "warning"


@dataclass(frozen=True)
class Rule:
    """All members must have the same ``view`` of a field."""

    field: str  #: name of the field of `Signature`, as in `Differences`
    view: Callable[[Signature], Hashable]
    verdict: Verdict


@dataclass(frozen=True)
class Differences:
    """Names of the fields of `Signature` in which two ranks differ, each listed once."""

    blocking: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    soft: tuple[str, ...] = ()  #: warnings

    @property
    def hard(self) -> tuple[str, ...]:
        """The errors."""
        return self.blocking + self.wrong

    @property
    def all(self) -> tuple[str, ...]:
        """Errors and warnings."""
        return self.hard + self.soft

    @property
    def reported(self) -> tuple[str, ...]:
        """The errors; the warnings if there are none: beside an error they explain nothing."""
        return self.hard or self.soft

    def __bool__(self) -> bool:
        return bool(self.all)


# --- views ---------------------------------------------------------------------------------------


def _amount(signature: Signature) -> int:
    """Return the number of input elements; bytes, if the shapes of some tensors are not known."""
    is_whole = signature.tensors <= len(signature.input_sizes)
    return _elements(signature.input_sizes) if is_whole else signature.nbytes


def _elements(shapes: _Shapes) -> int:
    return sum(map(math.prod, shapes))


def _input_amount(signature: Signature) -> Hashable:
    """Return the input size of a member, which must be equal on all members.

    In an uneven ``all_gather`` all members know the input sizes of all (NCCL supports that).
    """
    amounts = tuple(map(math.prod, signature.output_sizes))
    if signature.op == "all_gather" and len(set(amounts)) > 1:
        return amounts
    return _amount(signature)


def _elements_by_input(signature: Signature) -> Hashable:
    return tuple(map(math.prod, signature.input_sizes)) if len(signature.input_sizes) > 1 else ()


def _input_shapes(signature: Signature) -> Hashable:
    is_uneven_gather = isinstance(_input_amount(signature), tuple)
    is_partial = signature.tensors > len(signature.input_sizes)
    return () if is_uneven_gather or is_partial else signature.input_sizes


def _bit_widths(dtypes: tuple[str, ...]) -> Hashable:
    numbers = (_DIGITS.search(dtype) for dtype in dtypes)
    return tuple(int(number[0]) if number else 8 for number in numbers)  # bool has no number


def _exchanged(signature: Signature) -> Hashable:
    """Return the amount of an all_to_all; uneven amounts are compared pair by pair."""
    return "uneven" if is_uneven(signature) else _amount(signature)


def is_uneven(signature: Signature) -> bool:
    """Return whether members of an all_to_all send each other different amounts.

    Then an equal fingerprint does not prove that two ranks agree, see `compare`.
    """
    if signature.op not in EXCHANGES:
        return False
    shapes = (
        {*signature.input_sizes, *signature.output_sizes} if signature.op == "all_to_all" else ()
    )
    return bool(signature.input_splits or signature.output_splits or len(shapes) > 1)


# --- the table -----------------------------------------------------------------------------------

_BLOCKS, _WRONG, _WARNING = Verdict.BLOCKS, Verdict.WRONG, Verdict.WARNING

_DTYPES: Final = (
    Rule("input_dtypes", lambda signature: _bit_widths(signature.input_dtypes), _BLOCKS),
    Rule("input_dtypes", lambda signature: signature.input_dtypes, _WRONG),
)
#: Layout and device: a rank with a tensor of another kind sends something else, or nothing.
_PLACES: Final = (Rule("places", lambda signature: signature.places, _BLOCKS),)
_TENSORS: Final = (Rule("tensors", lambda signature: signature.tensors, _BLOCKS),)
_SIZES: Final = (
    Rule("input_sizes", _input_amount, _BLOCKS),
    Rule("input_sizes", _elements_by_input, _WRONG),
    Rule("input_sizes", _input_shapes, _WARNING),
)
_OUTPUTS: Final = (
    Rule("output_dtypes", lambda signature: _bit_widths(signature.output_dtypes), _BLOCKS),
    Rule("output_dtypes", lambda signature: signature.output_dtypes, _WRONG),
    Rule("output_sizes", lambda signature: _elements(signature.output_sizes), _BLOCKS),
    Rule("output_sizes", lambda signature: signature.output_sizes, _WARNING),
)
REDUCE_OP: Final = Rule("reduce_op", lambda signature: signature.reduce_op, _WRONG)
_ROOT: Final = (Rule("root", lambda signature: signature.root, _BLOCKS),)
_INPUTS: Final = (*_DTYPES, *_TENSORS, *_SIZES, *_PLACES)
#: The elements are sent as they lie in memory; other operations copy them into one buffer first.
_STRIDES: Final = (Rule("strides", lambda signature: signature.strides, _WRONG),)
#: The amounts between two members are compared pair by pair, see `compare`.
_EXCHANGE: Final = (*_DTYPES, *_PLACES)
#: Operations for which an equal signature does not prove that two members agree.
EXCHANGES: Final = ("all_to_all", "all_to_all_single")

#: The rules of each operation; the operation itself must be the same one, too.
RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    "all_gather": _INPUTS,
    "all_gather_coalesced": _INPUTS,
    "all_gather_into_tensor": _INPUTS,
    "all_gather_into_tensor_coalesced": _INPUTS,
    "all_reduce": (*_INPUTS, *_STRIDES, REDUCE_OP),
    "all_reduce_coalesced": (*_INPUTS, REDUCE_OP),
    "all_to_all": _EXCHANGE,
    "all_to_all_single": _EXCHANGE,
    "barrier": (),
    "broadcast": (*_INPUTS, *_STRIDES, *_ROOT),
    "gather": (*_INPUTS, *_ROOT),
    "monitored_barrier": (),
    "reduce": (*_INPUTS, *_STRIDES, REDUCE_OP, *_ROOT),
    "reduce_scatter": (*_INPUTS, REDUCE_OP),
    "reduce_scatter_tensor": (*_INPUTS, REDUCE_OP),
    "reduce_scatter_tensor_coalesced": (*_INPUTS, REDUCE_OP),
    "scatter": (*_OUTPUTS, *_PLACES, *_STRIDES, *_ROOT),
}
#: Operations that move no data.
BARRIERS: Final = ("barrier", "monitored_barrier")
#: Operations of two ranks.
MESSAGES: Final = ("send", "recv")
#: Operations that send their tensors in the order of memory.
IN_MEMORY_ORDER: Final = frozenset(
    op for op, rules in RULES.items() if any(rule in rules for rule in _STRIDES)
)
#: The rules of an unknown operation: its members may have inputs of different sizes.
_OTHERS: Final = (*_DTYPES, *_PLACES, REDUCE_OP, *_ROOT)
#: The rules for the two ends of a message: nothing hangs, Gloo aborts or fills a part only.
_MESSAGE: Final = (
    Rule("input_dtypes", lambda signature: signature.input_dtypes, _WRONG),
    Rule("input_sizes", _amount, _WRONG),
    *_PLACES,
)


def _rules(signature: Signature) -> tuple[Rule, ...]:
    if signature.kind in MESSAGES:
        return _MESSAGE
    return RULES.get(signature.op, _OTHERS)


def other_kind(message: Signature) -> Literal["send", "recv"]:
    """Return the kind of the message that meets a send or a receive at its other end."""
    return "recv" if message.kind == "send" else "send"


# --- uses of the table ---------------------------------------------------------------------------


def hard_key(signature: Signature) -> tuple[Hashable, ...]:
    """Return a key that is equal on two members, or two ends of a message, without an error.

    Uneven exchanges may have equal keys in spite of an error, see `is_uneven`.
    """
    name = "message" if signature.kind in MESSAGES else signature.op
    exchanged = (_exchanged(signature),) if signature.op in EXCHANGES else ()
    errors = (rule.view(signature) for rule in _rules(signature) if rule.verdict is not _WARNING)
    return name, *errors, *exchanged


def full_key(signature: Signature) -> tuple[Hashable, ...]:
    """Return a key that is equal on two members, or two ends of a message, without a difference."""
    warnings = (rule.view(signature) for rule in _rules(signature) if rule.verdict is _WARNING)
    return *hard_key(signature), *warnings


def compare(
    mine: Signature, theirs: Signature, *, me: int = -1, other: int = -1, size: int = 0
) -> Differences:
    """Compare the signatures of two members for the same collective of a group.

    Args:
        mine: signature of one member.
        theirs: signature of another member.
        me: position of the first in the group, as all_to_all counts; -1: not known.
        other: position of the second; -1: not known.
        size: number of members of the group; 0: not known.
    """
    if mine.op != theirs.op:
        return Differences(blocking=("op",))
    differences = _differences(mine, theirs)
    if mine.op in EXCHANGES and not _is_exchange_even(mine, theirs, me, other, size):
        has_splits = any(
            signature.input_splits or signature.output_splits for signature in (mine, theirs)
        )
        fields = ("input_splits", "output_splits") if has_splits else ("input_sizes",)
        return Differences((*differences.blocking, *fields), differences.wrong, differences.soft)
    return differences


def compare_message(sent: Signature, received: Signature) -> Differences:
    """Compare the two ends of a message."""
    return _differences(sent, received)


def _differences(mine: Signature, theirs: Signature) -> Differences:
    verdict_by_field: dict[str, Verdict] = {}
    for rule in _rules(mine):
        is_known = rule.field in verdict_by_field
        if not is_known and rule.view(mine) != rule.view(theirs):
            verdict_by_field[rule.field] = rule.verdict
    if "tensors" in verdict_by_field:  # then the sizes belong to different tensors
        verdict_by_field.pop("input_sizes", None)
    blocking, wrong, soft = (
        tuple(field for field, verdict in verdict_by_field.items() if verdict is wanted)
        for wanted in (_BLOCKS, _WRONG, _WARNING)
    )
    return Differences(blocking, wrong, soft)


def _is_exchange_even(mine: Signature, theirs: Signature, me: int, other: int, size: int) -> bool:
    """Return whether each of the two receives what the other sends; True if that is not known."""
    for sender, receiver, source, target in ((mine, theirs, me, other), (theirs, mine, other, me)):
        sent = _part(sender, "input", target, size)
        received = _part(receiver, "output", source, size)
        if sent is not None and received is not None and sent != received:
            return False
    return True


def _part(signature: Signature, side: str, index: int, size: int) -> int | None:
    """Return the number of elements sent to, or received from, the member at ``index``."""
    sizes: _Shapes = getattr(signature, f"{side}_sizes")
    splits: tuple[int, ...] = getattr(signature, f"{side}_splits")
    if index < 0 or not sizes:
        return None
    if signature.op == "all_to_all":
        return math.prod(sizes[index]) if index < len(sizes) else None
    if splits:
        return splits[index] * math.prod(sizes[0][1:]) if index < len(splits) else None
    return math.prod(sizes[0]) // size if size else None
