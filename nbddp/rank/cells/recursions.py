"""Keeps IPython from looking at each frame of a deep recursion, which takes it seconds under load.

Runs in: the rank process, main thread.
"""

import types
from collections import Counter
from typing import Any, TypeAlias

from stack_data.core import RepeatedFrames

#: IPython gets this many of the outermost, and of the innermost, frames that are at one line.
_KEPT = 5

_Key: TypeAlias = tuple[types.CodeType, int]


class ShortRecursions:
    """Shortens tracebacks before IPython reads the sources of their frames.

    IPython shows three frames of a recursion and counts the others, but asks `inspect` for the
    source of each. The count that it shows includes the frames that were left out.

    Args:
        writer: IPython's writer of tracebacks.
    """

    def __init__(self, writer: Any) -> None:
        self._get_records = writer.get_records
        writer.get_records = self._records

    def _records(self, etb: types.TracebackType, *options: Any) -> Any:
        short, left_out = shortened(etb)
        records = self._get_records(short, *options)
        for record in records if left_out else ():
            repeated = getattr(record, "_sd", None)
            if isinstance(repeated, RepeatedFrames):
                keys = [
                    *repeated.frame_keys,
                    *(key for key in set(repeated.frame_keys) for _ in range(left_out.pop(key, 0))),
                ]
                described: Any = RepeatedFrames([], keys)  # its types are not for type checkers
                record.description = described.description
        return records


def shortened(
    traceback: types.TracebackType,
) -> tuple[types.TracebackType | None, dict[_Key, int]]:
    """Return a copy of a traceback without the middle of its recursions.

    Returns:
        The copy, and the number of frames that were left out, by code and line.
    """
    steps: list[types.TracebackType] = []
    step: types.TracebackType | None = traceback
    while step is not None:
        steps.append(step)
        step = step.tb_next
    counts = Counter(map(_key, steps))
    left_out = {key: n - 2 * _KEPT for key, n in counts.items() if n > 2 * _KEPT}
    if not left_out:
        return traceback, {}
    copy: types.TracebackType | None = None
    below: Counter[_Key] = Counter()
    for step in reversed(steps):
        key = _key(step)
        below[key] += 1
        if below[key] <= _KEPT or below[key] > counts[key] - _KEPT:
            copy = types.TracebackType(copy, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return copy, left_out


def _key(step: types.TracebackType) -> _Key:
    return step.tb_frame.f_code, step.tb_lineno
