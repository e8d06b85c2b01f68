"""Diagnoses ranks so that an error in a finding costs the finding, and not the hub's thread.

Runs in: the notebook's process, the hub thread.
"""

import logging
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
    """`diagnose` and `compare_records`; an error in them is a bug of nbddp, and is logged.

    Most of their code reads the user's source. Without it, findings name the ranks and operations.

    Args:
        sources: the code of the user.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

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
                return explain(ranks, sources=sources, **facts)
            except Exception:  # noqa: BLE001 - a bug in nbddp: the cell is to end all the same
                _log.exception("nbddp could not explain what the ranks do; please report this")
        return otherwise
