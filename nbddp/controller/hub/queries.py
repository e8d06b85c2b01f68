"""Questions to the pool and to single ranks, also while a cell runs; the comms of widgets.

Runs in: the notebook's process, any thread.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from nbddp.controller.hub.thread import HubThread
from nbddp.controller.state.actions import Diagnosed, RanksRestarted
from nbddp.controller.state.stimuli import DiagnoseRequested, RestartRanksRequested
from nbddp.wire.channels import Frame
from nbddp.wire.messages import (
    CommToRank,
    CommType,
    Complete,
    Completed,
    Debug,
    Debugged,
    Inspect,
    Inspected,
    RankRequest,
)
from nbddp.wire.rank_set import RankSet

_Answer = TypeVar("_Answer", Completed, Inspected, Debugged)


class RankQueries:
    """`Pool.talk`. An answer is None where the rank gave none in time."""

    def __init__(self, hub: Callable[[], HubThread]) -> None:
        self._hub = hub

    # --- to the hub ----------------------------------------------------------------------------

    def diagnose(self, peek: RankSet, last: int = 64) -> Diagnosed:
        """Look at all ranks, and have some described from outside.

        Args:
            peek: these.
            last: operations that each rank tells though they are complete.

        Raises:
            PoolBrokenError: the hub has ended.
        """
        hub = self._hub()
        return hub.replies.ask(
            Diagnosed, lambda number: hub.post(DiagnoseRequested(number, peek, last))
        )

    def survey(self) -> Diagnosed:
        """Look at all ranks, and at their memory; its report is empty. Raises as `diagnose`."""
        hub = self._hub()
        return hub.replies.ask(
            Diagnosed,
            lambda number: hub.post(DiagnoseRequested(number, last=1, survey=True)),
        )

    def restart_ranks(
        self, ranks: RankSet, is_wanted: Callable[[], bool] = lambda: True
    ) -> RanksRestarted | None:
        """Put fresh processes in the place of ranks, and wait for them. Raises as `diagnose`.

        None: the wait is not wanted any more; the processes come all the same.
        """
        hub = self._hub()
        done = hub.replies.ask_within(
            None,
            RanksRestarted,
            lambda number: hub.post(RestartRanksRequested(number, ranks)),
            is_wanted,
        )
        if done is None and is_wanted():
            raise hub.replies.lost()
        return done

    # --- to a rank -----------------------------------------------------------------------------

    def _ask(
        self,
        kind: type[_Answer],
        rank: int,
        question: Callable[[int], RankRequest],
        limit_s: float,
    ) -> _Answer | None:
        hub = self._hub()
        return hub.replies.ask_within(
            limit_s, kind, lambda number: hub.send_to_ranks(RankSet.of([rank]), question(number))
        )

    def complete(self, rank: int, code: str, cursor: int, limit_s: float) -> Completed | None:
        """What may stand at ``cursor`` (in code points), by the names of ``rank``."""
        return self._ask(
            Completed,
            rank,
            lambda number: Complete(number=number, code=code, cursor=cursor),
            limit_s,
        )

    def inspect(
        self, rank: int, code: str, cursor: int, detail_level: int, limit_s: float
    ) -> Inspected | None:
        """Describe the name at ``cursor`` (in code points), as ``name?`` does on ``rank``."""
        return self._ask(
            Inspected,
            rank,
            lambda number: Inspect(
                number=number, code=code, cursor=cursor, detail_level=1 if detail_level else 0
            ),
            limit_s,
        )

    def debug(
        self, rank: int, content: dict[str, Any], limit_s: float, *, folder: str = ""
    ) -> Debugged | None:
        """Hand a request of the Debug Adapter Protocol to ``rank``; see `Debug.folder`."""
        return self._ask(
            Debugged,
            rank,
            lambda number: Debug(number=number, content=content, folder=folder),
            limit_s,
        )

    def send_comm(
        self,
        rank: int,
        msg_type: CommType,
        content: dict[str, Any],
        metadata: dict[str, Any],
        buffers: Sequence[Frame],
    ) -> None:
        """Hand a comm message of the front end to the widget's rank."""
        request = CommToRank(msg_type=msg_type, content=content, metadata=metadata)
        self._hub().send_to_ranks(RankSet.of([rank]), request, buffers)
