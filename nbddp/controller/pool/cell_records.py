"""Notes on the cells that the processes of a pool have run.

Runs in: the notebook's process, the thread that runs cells. Pure.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable

from nbddp.controller.catch_up import CellHistory, PastCell
from nbddp.controller.cell_errors import ranks_to_debug
from nbddp.controller.hub import Run
from nbddp.controller.pool.cell_options import NO_NAME, CellOptions
from nbddp.controller.state import RankInfo, RunOutcome
from nbddp.wire.rank_set import NO_RANKS, RankSet

#: Cells of which the trace knows the number; ranks remember the last 1024 operations.
_REMEMBERED_CELLS = 4096
#: Each cell tells its ranks of the last ones that failed.
_REMEMBERED_FAILURES = 16


class CellRecords:
    """The cells since the start of a pool, or since all of its ranks were restarted.

    Args:
        is_attached: the pool was taken back, and has run other cells before.
        before: the cells before all ranks were restarted; None: they were not.
    """

    def __init__(self, *, is_attached: bool = False, before: CellHistory | None = None) -> None:
        self.numbers = itertools.count(1)  #: execution counts for the cells of a script
        self.number_by_run: dict[str, int] = {}  #: execution counts, for the trace
        self.last_run: Run | None = None
        self.last_name = NO_NAME  #: how messages name the last cell
        self.last_number = 0  #: its execution count
        self._wait_of_left: Callable[[], str] | None = None
        self.failed_runs: deque[str] = deque(maxlen=_REMEMBERED_FAILURES)
        self._failed = NO_RANKS  # in the last cell that failed
        self._history = CellHistory(is_partial=is_attached, before=before)

    def submit(self, run_id: str, number: int) -> None:
        """Note the number of a cell that is about to be sent, and the end of the one before it."""
        self.number_by_run[run_id] = number
        if len(self.number_by_run) > _REMEMBERED_CELLS:
            del self.number_by_run[next(iter(self.number_by_run))]
        outcome = self.last_outcome
        self._history.end(outcome)
        if outcome is None or outcome.run_id in self.failed_runs:
            return
        if len(outcome.ranks("ok")) < len(outcome.results):
            self.failed_runs.append(outcome.run_id)

    def begin(
        self, run: Run, code: str, options: CellOptions, infos: Iterable[RankInfo] = ()
    ) -> None:
        """Note a cell that has begun."""
        self.last_run, self._wait_of_left = run, None
        self.last_name, self.last_number = options.cell_name, options.execution_count
        if options.replay is None and options.execution_count:
            past = PastCell(options.execution_count, code, options.first_line, options.ranks)
            replaced = [info.process for info in infos if info.is_replacement]
            self._history.begin(run.run_id, past, replaced)

    @property
    def last_outcome(self) -> RunOutcome | None:
        """The end of the last cell; None: it runs, or there was none."""
        return None if self.last_run is None else self.last_run.outcome

    def wait_by(self, how_to_wait: Callable[[], str]) -> None:
        """Note how the user waits for the end of the last cell, which another notebook has begun.

        Args:
            how_to_wait: returns the command.
        """
        self._wait_of_left = how_to_wait

    @property
    def how_to_wait(self) -> str:
        """How the user waits for the end of the last cell."""
        if self._wait_of_left is not None:
            return self._wait_of_left()
        if self.last_name == NO_NAME:
            return "wait for it"
        return f"Out[{self.last_number}].wait() if it has --async"

    @property
    def history(self) -> CellHistory:
        """The cells that have ended."""
        self._history.end(self.last_outcome)
        return self._history

    def ranks_to_debug(self, ranks: RankSet) -> tuple[int, ...]:
        """The ranks that failed last, if they are among ``ranks``; none for a rank that runs alone.

        The user who names one rank has chosen it.
        """
        if self.last_outcome is not None:
            self._failed = ranks_to_debug(self.last_outcome) or self._failed
        failed = set(self._failed).intersection(ranks)
        return tuple(sorted(failed)) if len(ranks) > 1 else ()
