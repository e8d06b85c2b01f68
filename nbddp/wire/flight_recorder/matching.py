"""What matches what: which differences between ranks are errors, operation by operation.

Runs in: every process. Pure.

One table, `RULES`, says what the members of a group must agree upon. All who ask read it here:

    rank      `hard_key`, `full_key` -> fingerprints: compared before data moves, after the cell
              `compare`              -> what differs, where fingerprints do (also for ``--check``)
    notebook  `compare`              -> the diagnosis: what never ends, what is told after the cell

An error is raised: before data moves on one machine and with ``--check``, else after the cell. A
warning is told. An error either *blocks*, since the operation hangs, aborts or reads what is not
there, or it lets the operation end with what nobody meant. Which one was tried out with Gloo; where
it depends on sizes, it blocks. Only what blocks is part of a proof that a rank never goes on.
"""

import math
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from nbddp.wire.flight_recorder.schema import Signature

_Shapes: TypeAlias = tuple[tuple[int, ...], ...]
_DIGITS: Final = re.compile(r"\d+")


class Verdict(Enum):
    """What a difference is."""

    BLOCKS = "error: the operation never ends, or not well"
    WRONG = "error: the operation ends, and its result is not what was meant"
    WARNING = "warning"


@dataclass(frozen=True)
class Rule:
    """All members must show the same ``view`` of a field."""

    field: str  #: of `Signature`, as differences name it
    view: Callable[[Signature], Hashable]
    verdict: Verdict


@dataclass(frozen=True)
class Differences:
    """Names of the fields of `Signature` in which two ranks differ, each in one place."""

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
    def told(self) -> tuple[str, ...]:
        """The errors; without any, the warnings: beside an error these do not say what is wrong."""
        return self.hard or self.soft

    def __bool__(self) -> bool:
        return bool(self.all)


# --- views ---------------------------------------------------------------------------------------


def _amount(known: Signature) -> int:
    """Elements of what it gives; bytes, where the shapes of some tensors are not known."""
    is_whole = known.tensors <= len(known.input_sizes)
    return _elements(known.input_sizes) if is_whole else known.nbytes


def _elements(shapes: _Shapes) -> int:
    return sum(map(math.prod, shapes))


def _amounts_given(known: Signature) -> Hashable:
    """What a member brings, where all bring as much as all others.

    Of an uneven ``all_gather`` all members know how much each brings (NCCL can do that).
    """
    amounts = tuple(map(math.prod, known.output_sizes))
    if known.op == "all_gather" and len(set(amounts)) > 1:
        return amounts
    return _amount(known)


def _each_given(known: Signature) -> Hashable:
    return tuple(map(math.prod, known.input_sizes)) if len(known.input_sizes) > 1 else ()


def _shapes_given(known: Signature) -> Hashable:
    uneven = isinstance(_amounts_given(known), tuple)
    return () if uneven or known.tensors > len(known.input_sizes) else known.input_sizes


def _widths(dtypes: tuple[str, ...]) -> Hashable:
    found = (_DIGITS.search(dtype) for dtype in dtypes)
    return tuple(int(each[0]) if each else 8 for each in found)  # bool has no number


def _exchanged(known: Signature) -> Hashable:
    """Of an all_to_all; what is uneven is compared pair by pair."""
    return "uneven" if is_uneven(known) else _amount(known)


def is_uneven(known: Signature) -> bool:
    """Whether members of an all_to_all give each other different amounts: fingerprints say nothing.

    Then an equal fingerprint is no proof that two ranks agree, see `compare`.
    """
    if known.op not in EXCHANGES:
        return False
    shapes = {*known.input_sizes, *known.output_sizes} if known.op == "all_to_all" else ()
    return bool(known.input_splits or known.output_splits or len(shapes) > 1)


# --- the table -----------------------------------------------------------------------------------

_BLOCKS, _WRONG, _WARNING = Verdict.BLOCKS, Verdict.WRONG, Verdict.WARNING

_DTYPES: Final = (
    Rule("input_dtypes", lambda known: _widths(known.input_dtypes), _BLOCKS),
    Rule("input_dtypes", lambda known: known.input_dtypes, _WRONG),
)
_TENSORS: Final = (Rule("tensors", lambda known: known.tensors, _BLOCKS),)
_SIZES: Final = (
    Rule("input_sizes", _amounts_given, _BLOCKS),
    Rule("input_sizes", _each_given, _WRONG),
    Rule("input_sizes", _shapes_given, _WARNING),
)
_TAKEN: Final = (
    Rule("output_dtypes", lambda known: _widths(known.output_dtypes), _BLOCKS),
    Rule("output_dtypes", lambda known: known.output_dtypes, _WRONG),
    Rule("output_sizes", lambda known: _elements(known.output_sizes), _BLOCKS),
    Rule("output_sizes", lambda known: known.output_sizes, _WARNING),
)
REDUCE_OP: Final = Rule("reduce_op", lambda known: known.reduce_op, _WRONG)
_ROOT: Final = (Rule("root", lambda known: known.root, _BLOCKS),)
_GIVEN: Final = (*_DTYPES, *_TENSORS, *_SIZES)
#: Whom it gives how much is compared pair by pair, see `compare`.
_EXCHANGE: Final = _DTYPES
#: Of these an equal signature is no proof that two members agree.
EXCHANGES: Final = ("all_to_all", "all_to_all_single")

#: By operation; beside these, the operation itself must be the same one.
RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    "all_gather": _GIVEN,
    "all_gather_coalesced": _GIVEN,
    "all_gather_into_tensor": _GIVEN,
    "all_gather_into_tensor_coalesced": _GIVEN,
    "all_reduce": (*_GIVEN, REDUCE_OP),
    "all_reduce_coalesced": (*_GIVEN, REDUCE_OP),
    "all_to_all": _EXCHANGE,
    "all_to_all_single": _EXCHANGE,
    "barrier": (),
    "broadcast": (*_GIVEN, *_ROOT),
    "gather": (*_GIVEN, *_ROOT),
    "monitored_barrier": (),
    "reduce": (*_GIVEN, REDUCE_OP, *_ROOT),
    "reduce_scatter": (*_GIVEN, REDUCE_OP),
    "reduce_scatter_tensor": (*_GIVEN, REDUCE_OP),
    "reduce_scatter_tensor_coalesced": (*_GIVEN, REDUCE_OP),
    "scatter": (*_TAKEN, *_ROOT),
}
#: Of an operation that is not known: how much each member brings is its own affair.
_OTHERS: Final = (*_DTYPES, REDUCE_OP, *_ROOT)
#: The two ends of a message: nothing hangs, Gloo aborts or fills a part only.
_MESSAGE: Final = (
    Rule("input_dtypes", lambda known: known.input_dtypes, _WRONG),
    Rule("input_sizes", _amount, _WRONG),
)


def _rules(known: Signature) -> tuple[Rule, ...]:
    if known.kind in ("send", "recv"):
        return _MESSAGE
    return RULES.get(known.op, _OTHERS)


# --- what is made of it --------------------------------------------------------------------------


def hard_key(known: Signature) -> tuple[Hashable, ...]:
    """Equal for two members, or for the ends of a message, if no difference is an error.

    Exchanges that are uneven apart, see `is_uneven`.
    """
    name = "message" if known.kind in ("send", "recv") else known.op
    exchanged = (_exchanged(known),) if known.op in EXCHANGES else ()
    errors = (rule.view(known) for rule in _rules(known) if rule.verdict is not _WARNING)
    return name, *errors, *exchanged


def full_key(known: Signature) -> tuple[Hashable, ...]:
    """Likewise, if there is no difference at all."""
    warnings = (rule.view(known) for rule in _rules(known) if rule.verdict is _WARNING)
    return *hard_key(known), *warnings


def compare(
    mine: Signature, theirs: Signature, *, me: int = -1, other: int = -1, size: int = 0
) -> Differences:
    """Compare what two members brought to the same collective of a group.

    Args:
        mine: of one member.
        theirs: of another one.
        me: position of the one in the group, as all_to_all counts; -1: not known.
        other: position of the other one.
        size: of the group.
    """
    if mine.op != theirs.op:
        return Differences(blocking=("op",))
    found = _compared(mine, theirs)
    if mine.op in EXCHANGES and not _is_exchange_even(mine, theirs, me, other, size):
        has_splits = any(each.input_splits or each.output_splits for each in (mine, theirs))
        fields = ("input_splits", "output_splits") if has_splits else ("input_sizes",)
        return Differences((*found.blocking, *fields), found.wrong, found.soft)
    return found


def compare_message(sent: Signature, received: Signature) -> Differences:
    """Compare the two ends of a message."""
    return _compared(sent, received)


def _compared(mine: Signature, theirs: Signature) -> Differences:
    verdict_by_field: dict[str, Verdict] = {}
    for rule in _rules(mine):
        is_known = rule.field in verdict_by_field
        if not is_known and rule.view(mine) != rule.view(theirs):
            verdict_by_field[rule.field] = rule.verdict
    if "tensors" in verdict_by_field:  # then their sizes are not those of the same tensors
        verdict_by_field.pop("input_sizes", None)
    blocking, wrong, soft = (
        tuple(field for field, verdict in verdict_by_field.items() if verdict is wanted)
        for wanted in (_BLOCKS, _WRONG, _WARNING)
    )
    return Differences(blocking, wrong, soft)


def _is_exchange_even(mine: Signature, theirs: Signature, me: int, other: int, size: int) -> bool:
    """What each of the two gives is what the other one takes; True if that is not known."""
    for giver, taker, source, target in ((mine, theirs, me, other), (theirs, mine, other, me)):
        given = _part(giver, "input", target, size)
        taken = _part(taker, "output", source, size)
        if given is not None and taken is not None and given != taken:
            return False
    return True


def _part(known: Signature, side: str, index: int, size: int) -> int | None:
    """Elements given to, or taken from, the member at ``index``."""
    sizes: _Shapes = getattr(known, f"{side}_sizes")
    splits: tuple[int, ...] = getattr(known, f"{side}_splits")
    if index < 0 or not sizes:
        return None
    if known.op == "all_to_all":
        return math.prod(sizes[index]) if index < len(sizes) else None
    if splits:
        return splits[index] * math.prod(sizes[0][1:]) if index < len(splits) else None
    return math.prod(sizes[0]) // size if size else None
