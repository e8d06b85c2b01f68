"""Compares blocks of bytes of two tensors, without torch.

Runs in: the notebook's process. Pure.
"""

import cmath
import math
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap

#: Codes of `struct` by dtype; `_item_code` has those of complex numbers.
_CODES = {
    "float64": "d",
    "float32": "f",
    "float16": "e",
    "int64": "q",
    "int32": "i",
    "int16": "h",
    "int8": "b",
    "uint64": "Q",
    "uint32": "I",
    "uint16": "H",
    "uint8": "B",
    "bool": "?",
}
#: Number of characters that are shown before and after the first different one.
_BEFORE, _AFTER = 12, 16
_SIZES = {"bfloat16": 2, "complex64": 8, "complex128": 16, "complex32": 4}


@dataclass(frozen=True)
class BlockDifference:
    """The difference of two tensors in the blocks that were compared."""

    element: int | None  #: index of the first different element in the flat tensor; None: none
    values: tuple[str, str] = ("", "")  #: the two values of this element
    max_abs: float | None = None  #: largest difference; None: the dtype is not supported


def compare(
    dtype: str, block_bytes: int, first: Mapping[int, bytes], second: Mapping[int, bytes]
) -> BlockDifference:
    """Compare the blocks that both ranks have.

    Args:
        dtype: of both tensors.
        block_bytes: size of a block.
        first: blocks of one rank, by number.
        second: blocks of the other rank.
    """
    size = _item_size(dtype)
    difference = BlockDifference(None)
    largest: list[float] = []
    for number in sorted(first.keys() & second.keys()):
        one, other = first[number], second[number]
        if size is None:
            return BlockDifference(None)
        index = _first_difference(one, other, size)
        if index is None:
            continue
        if difference.element is None:
            at = slice(index * size, (index + 1) * size)
            pair = (_text(dtype, one[at]), _text(dtype, other[at]))
            difference = BlockDifference(number * block_bytes // size + index, pair)
        largest.append(_max_abs(numbers(dtype, one), numbers(dtype, other)))
    if not largest or _item_code(dtype) is None:
        return difference
    max_abs = math.nan if any(map(math.isnan, largest)) else max(largest)
    return BlockDifference(difference.element, difference.values, max_abs)


def compare_texts(
    block_bytes: int,
    lengths: tuple[int, int],
    first: Mapping[int, bytes],
    second: Mapping[int, bytes],
    show: Callable[[str], str] = repr,
) -> BlockDifference:
    """Compare the blocks of two texts in UTF-32 that both ranks have.

    Args:
        block_bytes: size of a block.
        lengths: numbers of characters of both texts.
        first: blocks of one rank, by number.
        second: blocks of the other rank.
        show: formats an excerpt.
    """
    for number in sorted(first.keys() & second.keys()):
        one, other = first[number], second[number]
        index = _first_difference(one, other, 4)
        if index is None:
            index = min(len(one), len(other)) // 4
        if len(one) == len(other) == index * 4:
            continue
        begin = number * block_bytes // 4
        pair = (
            _excerpt(one, index, begin, lengths[0], show),
            _excerpt(other, index, begin, lengths[1], show),
        )
        return BlockDifference(begin + index, pair)
    return BlockDifference(min(lengths))


def _excerpt(block: bytes, index: int, begin: int, length: int, show: Callable[[str], str]) -> str:
    """Return a few characters around ``index``; ``block`` begins at ``begin`` in its text."""
    first, last = max(0, index - _BEFORE), index + _AFTER
    text = block[first * 4 : last * 4].decode("utf-32-le", "replace")
    return f"{'…' * (begin + first > 0)}{show(text)}{'…' * (begin + last < length)}"


def numbers(dtype: str, content: bytes) -> Sequence[complex]:
    """Return the elements of a block as Python numbers; none if the dtype is not supported."""
    if dtype == "bfloat16":  # the upper half of a float32
        halves = struct.unpack(f"={len(content) // 2}H", content)
        return array("f", array("I", [half << 16 for half in halves]).tobytes())
    code = _item_code(dtype)
    if code is None:
        return []
    size = struct.calcsize("=" + code)
    flat = struct.unpack(f"={len(content) // size}{code}", content)
    if dtype.startswith("complex"):
        return list(starmap(complex, zip(flat[::2], flat[1::2], strict=True)))
    return flat


def index_of(element: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the index in a tensor of its n-th element.

    >>> index_of(5, (2, 3))
    (1, 2)
    """
    index: list[int] = []
    for size in reversed(shape):
        element, at = divmod(element, size)
        index.append(at)
    return tuple(reversed(index))


def _item_code(dtype: str) -> str | None:
    if dtype == "bfloat16":
        return "H"
    return {"complex64": "f", "complex128": "d", "complex32": "e"}.get(dtype) or _CODES.get(dtype)


def _item_size(dtype: str) -> int | None:
    if dtype in _SIZES:
        return _SIZES[dtype]
    if dtype.startswith("float8"):
        return 1
    code = _CODES.get(dtype)
    return None if code is None else struct.calcsize("=" + code)


def _first_difference(one: bytes, other: bytes, size: int) -> int | None:
    """Return the first different element, by bisection, since comparing bytes is fast."""
    low, high = 0, min(len(one), len(other)) // size
    if one[: high * size] == other[: high * size]:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if one[low * size : middle * size] != other[low * size : middle * size]:
            high = middle
        else:
            low = middle
    return low


def _max_abs(one: Sequence[complex], other: Sequence[complex]) -> float:
    """Return the largest difference; NaN if only one side has a NaN."""
    largest = 0.0
    for first, second in zip(one, other, strict=False):
        if first == second:
            continue  # equal, which includes infinities
        distance = abs(first - second)
        if distance > largest:
            largest = distance
        elif cmath.isnan(distance) and not (cmath.isnan(first) and cmath.isnan(second)):
            return math.nan
    return largest


def _text(dtype: str, item: bytes) -> str:
    values = numbers(dtype, item)
    if not values:
        return f"0x{item.hex()}"
    value = values[0]
    if isinstance(value, float) and dtype in ("float32", "bfloat16", "float16"):
        return f"{value:.9g}"
    return str(value)
