"""Do two ranks mean the same operation? The rules, collective by collective.

Runs in: the notebook's process. Pure.

Two sorts of difference: *hard* ones make the ranks wait for ever, abort, or read what is not there;
with *soft* ones the operation completes, and its result is not what the user meant. Which is which
was tried out with Gloo; where it depends on sizes, it counts as hard.
"""

import math
import re
from dataclasses import dataclass
from typing import Final

from nbddp.wire.flight_recorder.schema import Signature

#: Every rank brings as many elements as every other.
_EQUAL_INPUTS: Final = frozenset(
    (
        "all_gather",
        "all_gather_coalesced",
        "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced",
        "all_reduce",
        "all_reduce_coalesced",
        "broadcast",
        "gather",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced",
    )
)
_NO_TENSORS: Final = frozenset(("barrier", "monitored_barrier"))
_DIGITS: Final = re.compile(r"\d+")


@dataclass(frozen=True)
class Differences:
    """Names of the fields of `Signature` in which two ranks differ."""

    hard: tuple[str, ...] = ()
    soft: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Both sorts."""
        return self.hard + self.soft

    def __bool__(self) -> bool:
        return bool(self.hard or self.soft)


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
        return Differences(hard=("op",))
    if mine.op in _NO_TENSORS:
        return Differences()
    hard: list[str] = []
    soft: list[str] = []
    _compare_dtypes(mine, theirs, hard, soft)
    if mine.root != theirs.root:
        hard.append("root")
    if mine.reduce_op != theirs.reduce_op:
        soft.append("reduce_op")
    match mine.op:
        case "scatter":
            _compare_sizes("output_sizes", mine, theirs, hard, soft)
        case "all_to_all" | "all_to_all_single":
            if not _is_exchange_even(mine, theirs, me, other, size):
                uneven = mine.input_splits or mine.output_splits
                uneven = uneven or theirs.input_splits or theirs.output_splits
                hard += ("input_splits", "output_splits") if uneven else ("input_sizes",)
        case op if op in _EQUAL_INPUTS and not _is_uneven_gather(mine, theirs):
            if mine.tensors != theirs.tensors and "coalesced" in op:
                hard.append("tensors")
            else:
                _compare_sizes("input_sizes", mine, theirs, hard, soft)
        case _:
            pass  # of an operation that is not known only the name is compared
    return Differences(tuple(hard), tuple(soft))


def compare_message(sent: Signature, received: Signature) -> Differences:
    """Compare the two ends of a message. Nothing hangs: Gloo aborts, or fills a part only."""
    soft = []
    if sent.input_dtypes != received.input_dtypes:
        soft.append("input_dtypes")
    if sent.nbytes != received.nbytes:
        soft.append("nbytes")
    return Differences(soft=tuple(soft))


def _compare_dtypes(mine: Signature, theirs: Signature, hard: list[str], soft: list[str]) -> None:
    name = "output_dtypes" if mine.op == "scatter" else "input_dtypes"
    ours: tuple[str, ...] = getattr(mine, name)
    others: tuple[str, ...] = getattr(theirs, name)
    if not ours or not others or set(ours) == set(others):
        return
    same_width = {_bits(dtype) for dtype in ours} == {_bits(dtype) for dtype in others}
    (soft if same_width else hard).append(name)


def _bits(dtype: str) -> int:
    found = _DIGITS.search(dtype)
    return int(found[0]) if found else 8  # bool


def _compare_sizes(
    name: str, mine: Signature, theirs: Signature, hard: list[str], soft: list[str]
) -> None:
    ours: tuple[tuple[int, ...], ...] = getattr(mine, name)
    others: tuple[tuple[int, ...], ...] = getattr(theirs, name)
    if name == "input_sizes" and max(mine.tensors - len(ours), theirs.tensors - len(others)) > 0:
        # Not all shapes are known.
        if not hard and not soft and mine.nbytes != theirs.nbytes:
            hard.append(name)
    elif sum(map(math.prod, ours)) != sum(map(math.prod, others)):
        hard.append(name)
    elif ours != others and len(ours) == len(others):
        soft.append(name)


def _is_uneven_gather(mine: Signature, theirs: Signature) -> bool:
    """Ranks bring different amounts, and both know how much each brings (NCCL can do that)."""
    return (
        mine.op == "all_gather"
        and mine.output_sizes == theirs.output_sizes
        and len(set(map(math.prod, mine.output_sizes))) > 1
    )


def _is_exchange_even(mine: Signature, theirs: Signature, me: int, other: int, size: int) -> bool:
    """What each of the two gives is what the other one takes; True if that is not known."""
    for giver, taker, source, target in ((mine, theirs, me, other), (theirs, mine, other, me)):
        given = _part(giver, "input", target, size)
        taken = _part(taker, "output", source, size)
        if given is not None and taken is not None and given != taken:
            return False
    return True


def _part(found: Signature, side: str, index: int, size: int) -> int | None:
    """Elements given to, or taken from, the member at ``index``."""
    sizes: tuple[tuple[int, ...], ...] = getattr(found, f"{side}_sizes")
    splits: tuple[int, ...] = getattr(found, f"{side}_splits")
    if index < 0 or not sizes:
        return None
    if found.op == "all_to_all":
        return math.prod(sizes[index]) if index < len(sizes) else None
    if splits:
        return splits[index] * math.prod(sizes[0][1:]) if index < len(splits) else None
    return math.prod(sizes[0]) // size if size else None
