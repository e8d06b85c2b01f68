"""Questions to the pool and to single ranks, also while a cell runs; the comms of widgets.

Runs in: the notebook's process, any thread.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from nbddp.controller.hub.hub_thread import HubThread
from nbddp.controller.state import (
    Diagnosed,
    DiagnoseRequested,
    RanksRestarted,
    RestartRanksRequested,
    RestartWithdrawn,
    SendToAgent,
)
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
    LogRead,
    RankRequest,
    ReadLog,
)
from nbddp.wire.rank_set import RankSet

_Answer = TypeVar("_Answer", Completed, Inspected, Debugged)


class RankRequests:
    """`Pool.talk`. An answer is None if the rank gave none in time."""

    def __init__(self, hub: Callable[[], HubThread]) -> None:
        self._hub = hub

    # --- to the hub ----------------------------------------------------------------------------

    def diagnose(self, peek: RankSet, last: int = 64) -> Diagnosed:
        """Ask all ranks for a description.

        Args:
            peek: ranks that their agents describe too, from outside.
            last: the number of completed operations that each rank reports.

        Raises:
            PoolBrokenError: the hub has ended.
        """
        hub = self._hub()
        return hub.replies.ask(
            Diagnosed, lambda number: hub.post(DiagnoseRequested(number, peek, last))
        )

    def survey(self) -> Diagnosed:
        """Ask all ranks for a description with their memory; the report is empty.

        Raises:
            PoolBrokenError: the hub has ended.
        """
        hub = self._hub()
        return hub.replies.ask(
            Diagnosed,
            lambda number: hub.post(DiagnoseRequested(number, last=1, survey=True)),
        )

    def restart_ranks(
        self, ranks: RankSet, is_wanted: Callable[[], bool] = lambda: True
    ) -> RanksRestarted | None:
        """Start fresh processes in the places of ranks, and wait for them.

        Args:
            ranks: the ranks that get fresh processes.
            is_wanted: asked again and again; the wait ends when it returns False.

        Returns:
            The ranks that were replaced, or that the request was withdrawn in time; None: the wait
            was no longer wanted, and the processes still start.

        Raises:
            PoolBrokenError: the hub has ended.
        """
        hub = self._hub()
        requests: list[int] = []

        def request(number: int) -> None:
            requests.append(number)
            hub.post(RestartRanksRequested(number, ranks))

        done = hub.replies.ask_within(None, RanksRestarted, request, is_wanted)
        if done is not None:
            return done
        if is_wanted():
            raise hub.replies.lost()
        answer = hub.replies.ask(
            RanksRestarted, lambda number: hub.post(RestartWithdrawn(number, requests[0]))
        )
        return answer if answer.is_withdrawn else None

    # --- to an agent ---------------------------------------------------------------------------

    def log(self, rank: int, node: int, max_bytes: int, limit_s: float) -> LogRead | None:
        """Read the end of the log of ``rank`` on its ``node``, at most ``max_bytes``."""
        hub = self._hub()
        return hub.replies.ask_within(
            limit_s,
            LogRead,
            lambda number: hub.do(
                SendToAgent(node, ReadLog(number=number, rank=rank, max_bytes=max_bytes))
            ),
        )

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
        """Complete ``code`` at ``cursor`` (in code points) with the names of ``rank``.

        ``limit_s`` is the time for the answer, in seconds, here and below.
        """
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

    def glance(self, rank: int, code: str, limit_s: float) -> Inspected | None:
        """Describe the value of a name with attributes and items; empty: of all variables.

        The answer is not ``found`` if the rank had to run code for it.
        """
        return self._ask(
            Inspected,
            rank,
            lambda number: Inspect(number=number, code=code, cursor=0, is_glance=True),
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
