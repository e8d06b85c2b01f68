"""Lines of many ranks that differ in numbers only, as one line with ranges.

Runs in: the notebook's main thread. Pure: no clock, no I/O.

    [0] step 3 loss 0.41
    [1] step 3 loss 0.73  -->  [0-2] step 3 loss 0.41 … 0.73 (median 0.52, largest on rank 1)
    [2] step 3 loss 0.52
"""

import functools
import re
import statistics
from collections.abc import Sequence
from decimal import Decimal

#: Cells of more ranks have ranges.
MIN_RANKS = 9
#: Lines with more numbers are rows of tensors and tables.
_MAX_NUMBERS = 6
_MAX_CHARS = 300
#: A number that begins a word, and whose word has no more digits, as those of ``0x7f``, ``2a3``,
#: versions and addresses have: ``950``, ``-0.5``, ``1e-3``, ``1,950``.
_NUMBER = re.compile(
    r"(?<![\w.,])[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?"
    r"(?!\d|[.,]\d|[\d.]*[A-Za-z_]+\d)"
)
_PLACE = "\0"
_ALIGNMENT = re.compile(f" +{_PLACE}")
#: Values of several numbers, where the smallest of each says nothing; and lines that are several.
_NO_RANGES = re.compile(rf"\b(?:tensor|array|Parameter)\(|[\n{_PLACE}]")


@functools.lru_cache(maxsize=1024)  # ranks print the same line at about the same time
def pattern_of(text: str) -> str | None:
    """Return the line with placeholders for its numbers; None: it has none, or too many.

    >>> pattern_of("step 3 loss 0.41") == pattern_of("step 3 loss 0.73")
    True
    """
    if len(text) > _MAX_CHARS or _NO_RANGES.search(text):
        return None
    pattern, count = _NUMBER.subn(_PLACE, text)
    return _ALIGNMENT.sub(f" {_PLACE}", pattern) if 0 < count <= _MAX_NUMBERS else None


def with_ranges(ranks: Sequence[int], texts: Sequence[str]) -> str:
    """Return one line for lines with the same pattern.

    Args:
        ranks: the ranks of the lines.
        texts: the line of each rank.

    >>> with_ranges([4, 7, 9], ["loss 0.4", "loss 0.9", "loss 0.5"])
    'loss 0.4 … 0.9 (median 0.5, largest on rank 7)'
    """
    if len(set(texts)) == 1:
        return texts[0]
    columns = list(zip(*map(_NUMBER.findall, texts), strict=True))
    numbers = [tuple(map(_value, column)) for column in columns]
    shown = map(_range, columns, numbers)
    line = _NUMBER.sub(lambda _: next(shown), texts[0])
    varying = [
        n for n, values in enumerate(numbers) if len(set(values)) > 1 and values != tuple(ranks)
    ]
    if len(varying) != 1 or len(texts) < 3:
        return line
    values = numbers[varying[0]]
    median = columns[varying[0]][values.index(statistics.median_low(values))]
    most = max(values)
    largest = [rank for rank, value in zip(ranks, values, strict=True) if value == most]
    where = f", largest on rank {largest[0]}" if len(largest) == 1 else ""
    return f"{line} (median {median}{where})"


def _range(column: Sequence[str], values: Sequence[Decimal]) -> str:
    low, high = min(values), max(values)
    lowest = column[values.index(low)]
    return lowest if low == high else f"{lowest} … {column[values.index(high)]}"


def _value(number: str) -> Decimal:
    """The exact value: two whole numbers may differ in their twentieth digit."""
    return Decimal(number.replace(",", ""))
