"""Diagnoses ranks so that an error in a finding costs its words, and not the hub's thread.

Runs in: the notebook's process, the hub thread.
"""

import logging
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from nbddp.controller.diagnosis import (
    Finding,
    RankView,
    Report,
    Sources,
    compare_records,
    diagnose,
    no_sources,
)

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class GuardedDiagnosis:
    """`diagnose` and `compare_records`; an error in them is a bug of nbddp, and is logged once.

    An error in one finding leaves all others. Most of their code reads the user's source: without
    it, findings name the ranks and operations.

    Args:
        sources: the code of the user.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._told: set[tuple[object, ...]] = set()  #: places of errors that were logged

    def diagnose(
        self, ranks: Mapping[int, RankView], *, now_ns: int = 0, run_id: str = ""
    ) -> Report:
        """The report; an empty one if there is an error also without the source."""
        return self._guarded(diagnose, Report(run_id), ranks, now_ns=now_ns, run_id=run_id)

    def compare(self, ranks: Mapping[int, RankView], **facts: Any) -> tuple[Finding, ...]:
        """The findings about a cell that has ended; none if there is an error."""
        return self._guarded(compare_records, (), ranks, **facts)

    def _guarded(
        self, explain: Callable[..., _Answer], otherwise: _Answer, ranks: Mapping[int, RankView],
        **facts: Any,
    ) -> _Answer:  # fmt: skip
        for sources in (self._sources, no_sources):
            try:
                return explain(ranks, sources=sources, on_error=self._tell, **facts)
            except Exception as error:  # noqa: BLE001 - a bug in nbddp: the cell is to end anyway
                self._tell(error)
        return otherwise

    def _tell(self, error: Exception) -> None:
        """Log an error with its traceback, unless one of the same place was logged."""
        frames = traceback.extract_tb(error.__traceback__)
        place = type(error), frames[-1].filename, frames[-1].lineno
        if place not in self._told:
            self._told.add(place)
            message = "nbddp could not explain what the ranks do; please report this"
            _log.error(message, exc_info=error)
