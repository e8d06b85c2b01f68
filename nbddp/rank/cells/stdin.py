"""``input()``, ``getpass()`` and the debugger's prompt on a rank.

Runs in: the rank process. The question goes to the notebook, which names the rank and asks the
user; the I/O thread receives the answer.
"""

import builtins
import getpass
import itertools
import os
import queue
import sys
from collections.abc import Callable
from typing import Any

from nbddp.rank.agent_link import Link
from nbddp.rank.cells import breakpoints
from nbddp.rank.cells.shell import RankShell
from nbddp.rank.collectives import NO_REASON, StopReason
from nbddp.wire.flight_recorder import DEFAULT_GROUP, GroupInfo, Operation, Site
from nbddp.wire.messages import DescribeAtPrompt, InputReply, InputRequest

#: Answers a question about values in the thread of a prompt.
Describe = Callable[[DescribeAtPrompt], None]

_POLL_S = 0.1  # a wait without limit could not be interrupted on every platform


class Stdin:
    """Replaces the functions that would read file descriptor 0."""

    def __init__(self, shell: RankShell, link: Link) -> None:
        self._shell = shell
        self._link = link
        self._pid = os.getpid()
        self._numbers = itertools.count(1)
        #: By number of the question, because several threads may ask at once.
        self._replies: dict[int, queue.SimpleQueue[InputReply | DescribeAtPrompt]] = {}
        self._describers: dict[int, Describe] = {}  #: of questions at which values are described
        #: Numbers of the break points for which a debugger is open on an error.
        self.error_break_points: tuple[int, ...] = ()

    def install(self) -> None:
        """Make ``input``, ``getpass`` and ``breakpoint`` ask in the notebook."""
        builtins.input = self.ask
        getpass.getpass = self._getpass
        breakpoints.install(self._shell, lambda: self._shell.cell_ranks)

    def answer(self, reply: InputReply | DescribeAtPrompt) -> None:
        """Take an answer, or a question for the thread at a prompt. Called by the I/O thread."""
        if isinstance(reply, InputReply):
            number = reply.question
        else:
            number = min(self._describers, default=0)
        replies = self._replies.get(number)
        if replies is not None:  # None: the question was interrupted
            replies.put(reply)

    def ask(self, prompt: object = "", /, *, password: bool = False) -> str:
        """Ask the user, and return the answer.

        Raises:
            EOFError: the notebook cannot ask, or the user ended the input.
        """
        debugger = breakpoints.asking_debugger(sys._getframe(1))
        points = self.error_break_points if debugger is not None else ()
        return self._ask(
            str(prompt), password=password, debugger=debugger, reason=StopReason(points)
        )

    def note_error_stop(self, numbers: tuple[int, ...]) -> None:
        """Note the break points for which a debugger is open on an error; empty: none is."""
        self.error_break_points = numbers

    def ask_stop(
        self,
        stop: Operation,
        group: GroupInfo,
        reason: StopReason,
        check: Callable[[], None],
        describe: Describe,
    ) -> str:
        """Ask what to do before an operation.

        Args:
            stop: the operation, which has not been issued.
            group: its group.
            reason: of the stop.
            check: raises if the answer is not needed any more.
            describe: describes values in the frame of the user's line.

        Raises:
            EOFError: the notebook cannot ask.
        """
        named = None if group.desc == DEFAULT_GROUP else group
        return self._ask(
            "",
            stop=stop,
            group=named,
            reason=reason,
            check=check,
            describe=describe,
        )

    def ask_stuck(self, run_id: str, describe: Describe) -> str:
        """Ask what to do while all ranks are where they were when a deadlock was proven.

        Args:
            run_id: of the cell, which this rank may have ended.
            describe: describes values in the frame of the user's line.

        Raises:
            EOFError: the cell has ended on all ranks, or the notebook cannot ask.
        """
        return self._ask("", stuck_run_id=run_id, describe=describe)

    def _ask(
        self,
        prompt: str,
        *,
        password: bool = False,
        debugger: Site | None = None,
        stop: Operation | None = None,
        group: GroupInfo | None = None,
        reason: StopReason = NO_REASON,
        stuck_run_id: str = "",
        check: Callable[[], None] = lambda: None,
        describe: Describe | None = None,
    ) -> str:
        run_id = stuck_run_id or self._shell.run_id
        if os.getpid() != self._pid:
            raise EOFError("input() is not available in a forked child of a rank")
        if run_id is None:
            raise EOFError("input() is not available while no cell runs")
        number = next(self._numbers)
        replies = self._replies[number] = queue.SimpleQueue()
        if describe is not None:
            self._describers[number] = describe
        try:
            self._link.send_in_order(
                InputRequest(
                    run_id=run_id,
                    rank=self._shell.rank,
                    question=number,
                    prompt=prompt,
                    password=password,
                    debugger=debugger,
                    stop=stop,
                    group=group,
                    break_points=reason.break_points,
                    mismatch=reason.mismatch,
                    is_final=reason.is_final,
                    is_stuck=bool(stuck_run_id),
                )
            )
            ids = (run_id, None) if stuck_run_id else (run_id,)
            while isinstance(reply := self._wait_for_answer(replies, ids, check), DescribeAtPrompt):
                assert describe is not None  # noqa: S101 - see `answer`
                describe(reply)
        finally:
            self._describers.pop(number, None)
            del self._replies[number]
        if reply.value is None:
            raise EOFError(reply.reason or "end of input")
        return reply.value

    def _wait_for_answer(
        self,
        replies: "queue.SimpleQueue[InputReply | DescribeAtPrompt]",
        run_ids: tuple[str | None, ...],
        check: Callable[[], None],
    ) -> InputReply | DescribeAtPrompt:
        """Wait for the answer.

        The diagnosis identifies this function by its name, see `flight_recorder.schema.AT_PROMPT`.
        """
        while True:
            try:
                return replies.get(timeout=_POLL_S)
            except queue.Empty:
                if self._shell.run_id not in run_ids:  # a thread that outlives its cell
                    raise EOFError("the cell that asked has ended") from None
                check()

    def _getpass(self, prompt: str = "Password: ", stream: Any = None) -> str:
        return self.ask(prompt, password=True)
