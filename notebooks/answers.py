"""Answers to the prompts of a notebook's cells, for runs without a user.

The metadata of a cell carries what a reader would type, in order:
``"nbddp": {"answers": ["print x", "step"]}``. A cell without them has no user, as everywhere in
nbclient.

Runs in: the process that executes the notebook, in the asyncio loop of nbclient.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from nbclient import NotebookClient
from nbformat import NotebookNode

#: The outputs before a prompt come on another socket than the prompt. They are all there when
#: nothing has come for this time.
_QUIET_S = 0.25
_POLL_S = 0.02


class AnswersError(RuntimeError):
    """A cell asks more often than it has answers, or less often."""


class AnsweringClient(NotebookClient):
    """Gives the answers of a cell to its prompts, and shows both in its output."""

    _last_output = 0.0  # when (`time.monotonic`)

    async def async_execute_cell(
        self,
        cell: NotebookNode,
        cell_index: int,
        execution_count: int | None = None,
        store_history: bool = True,
    ) -> NotebookNode:
        """Run one cell; all of its answers must be asked for.

        Raises:
            AnswersError: the cell asks more often than it has answers, or less often.
        """
        answers = answers_of(cell)
        if not answers:
            return await super().async_execute_cell(
                cell, cell_index, execution_count, store_history
            )
        client: Any = self.kc
        client.allow_stdin = True
        left = iter(answers)
        answering = asyncio.create_task(self._answer(left, cell, cell_index))
        try:
            done = await super().async_execute_cell(
                cell, cell_index, execution_count, store_history
            )
        finally:
            client.allow_stdin = False
            answering.cancel()
            (failure,) = await asyncio.gather(answering, return_exceptions=True)
            if isinstance(failure, AnswersError):  # the reason of any other error of the cell
                raise failure
        if rest := list(left):
            raise AnswersError(f"cell {cell.id} has ended without a prompt for {rest}")
        return done

    def process_message(
        self, msg: dict[str, Any], cell: NotebookNode, cell_index: int
    ) -> NotebookNode | None:
        """Record a message as nbclient does."""
        self._last_output = time.monotonic()
        return super().process_message(msg, cell, cell_index)

    async def _answer(self, answers: Iterator[str], cell: NotebookNode, cell_index: int) -> None:
        client: Any = self.kc
        while True:
            asked = await client.stdin_channel.get_msg(timeout=None)
            if asked["msg_type"] != "input_request":
                continue
            self._last_output = time.monotonic()
            while time.monotonic() < self._last_output + _QUIET_S:
                await asyncio.sleep(_POLL_S)
            prompt = asked["content"]["prompt"]
            answer = next(answers, None)
            if answer is None:
                await self.km.interrupt_kernel()  # type: ignore[union-attr]
                raise AnswersError(f"cell {cell.id} has no answer for another prompt, {prompt!r}")
            # The same output as JupyterLab's, which saves it in the notebook.
            shown = {
                "msg_type": "stream",
                "header": {"msg_type": "stream"},
                "parent_header": asked["parent_header"],
                "content": {"name": "stdin", "text": f"{prompt} {answer}\n"},
            }
            self.process_message(shown, cell, cell_index)
            client.input(answer)


def answers_of(cell: NotebookNode) -> list[str]:
    """The answers that a cell carries."""
    return [str(answer) for answer in cell.metadata.get("nbddp", {}).get("answers", [])]
