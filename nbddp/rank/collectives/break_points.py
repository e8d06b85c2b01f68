"""Finds the break points that are true of an operation: ``%ddp break``.

Runs in: the rank process, in the thread that calls the operation.
"""

import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from nbddp.rank.code_sites import cell_of
from nbddp.rank.collectives.sanitizer import finite
from nbddp.wire.break_points import BreakPoint, group_names
from nbddp.wire.flight_recorder import CONSOLE, GroupInfo, Signature


class CellBreakPoints:
    """The break points of a cell at which this rank stops.

    Args:
        points: those of all ranks.
        rank: this rank.
        cell: number of the cell; 0: it has none.
        names: names that a condition may use, also in a module that does not have them.
    """

    def __init__(
        self, points: Sequence[BreakPoint], rank: int, cell: int, names: Mapping[str, Any]
    ) -> None:
        self._points = [point for point in points if not point.ranks or rank in point.ranks]
        self._rank = rank
        self._cell = cell or CONSOLE
        self._names = names
        self._has_failed: set[int] = set()  #: numbers of those whose errors were told
        self._judging = threading.local()

    def __bool__(self) -> bool:
        return bool(self._points)

    @property
    def is_judging(self) -> bool:
        """Whether this thread evaluates a condition."""
        return getattr(self._judging, "now", False)

    def at(
        self,
        info: GroupInfo,
        signature: Signature,
        number: int,
        frame: types.FrameType | None,
        sent: Sequence[torch.Tensor],
    ) -> tuple[int, ...]:
        """Return the numbers of the break points that are true of an operation.

        Args:
            info: its group.
            signature: of the operation.
            number: of the collective; 0: it is a message.
            frame: of the user's line that issues it; None: not known.
            sent: the tensors that the rank sends.
        """
        return tuple(
            point.number
            for point in self._points
            if point.op in ("", signature.op)
            and point.collective in (0, number)
            and (not point.group or point.group in group_names(info))
            and (not point.line or self._is_in_line(point, frame))
            and (not point.has_nan or any(map(finite.value_of, sent)))
            and (not point.condition or self._is_true(point, frame))
        )

    def _is_in_line(self, point: BreakPoint, frame: types.FrameType | None) -> bool:
        cell = point.cell or self._cell
        while frame is not None:
            if frame.f_lineno == point.line and cell_of(frame.f_code.co_filename) == cell:
                return True
            frame = frame.f_back
        return False

    def _is_true(self, point: BreakPoint, frame: types.FrameType | None) -> bool:
        names = dict(self._names)
        if frame is not None:
            names |= frame.f_globals
            names |= frame.f_locals
        self._judging.now = True
        try:
            return bool(eval(point.condition, names))  # noqa: S307 - the user's code
        except KeyboardInterrupt:  # the stop button
            raise
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            if point.number not in self._has_failed:
                self._has_failed.add(point.number)
                text = "".join(traceback.format_exception_only(error)).strip()
                print(  # noqa: T201 - output of the cell
                    f"break point {point.number} stops, as its condition failed: {text}"
                )
            return True
        finally:
            self._judging.now = False
