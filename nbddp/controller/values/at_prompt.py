"""Compares values of ranks that stand at a prompt inside a cell.

Runs in: the thread that waits for the cell. Each rank answers in the thread of its prompt, and
keeps the tensors for later questions until the cell has ended.
"""

import time
from collections.abc import Callable, Collection

from nbddp.controller.hub import Answer, HubThread, Run, Transfer
from nbddp.controller.values.push_pull import Exchange
from nbddp.errors import TransferError
from nbddp.settings import Settings
from nbddp.wire.messages import DescribeAtPrompt, DescribeValue, PullValue
from nbddp.wire.rank_set import Rank, RankSet

#: A rank that has not answered for this long is given up: its device may wait for an operation.
_LIMIT_S = 30.0


class PromptExchange(Exchange):
    """Questions to ranks at their prompts.

    Args:
        hub: carries the messages.
        settings: those of the pool.
        run: the run of the cell.
    """

    def __init__(self, hub: HubThread, settings: Settings, run: Run) -> None:
        super().__init__(hub, None, settings)
        self._cell = run
        self._began = time.monotonic()

    def ask(
        self,
        ranks: RankSet,
        request_of: Callable[[str], PullValue | DescribeValue | DescribeAtPrompt],
        accept: Callable[[Answer, list[bytes]], bool],
        complete: Collection[Rank],
        failure: str,
        *,
        needs_all: bool = False,
    ) -> None:
        """Ask ranks, and wait until each has answered; see `Exchange.ask`."""
        self._began = time.monotonic()

        def at_prompt(request_id: str) -> DescribeAtPrompt:
            request = request_of(request_id)
            assert isinstance(request, DescribeValue)  # noqa: S101 - `Descriptions` makes it
            return DescribeAtPrompt(
                request_id=request_id, run_id=self._cell.run_id, question=request.question
            )

        super().ask(ranks, at_prompt, accept, complete, failure, needs_all=needs_all)

    def _open(self, ranks: RankSet, *, needs_all: bool = False) -> Transfer:
        transfer = self._new_transfer(ranks, needs_all=needs_all)
        self._hub.open_transfer(transfer, at_prompt_of=self._cell.run_id)
        return transfer

    def _check(self, missing: set[Rank]) -> None:
        late = RankSet.of(missing)
        if self._cell.outcome is not None or self._cell.was_interrupted:
            raise TransferError(f"the cell ends, and {late.describe()} did not answer")
        if time.monotonic() - self._began > _LIMIT_S:
            raise TransferError(f"{late.describe()} did not answer within {_LIMIT_S:g} s")
