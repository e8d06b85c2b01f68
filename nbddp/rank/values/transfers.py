"""Sends, describes and binds the variables of a rank.

Runs in: the rank process, main thread, between cells.
"""

import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar, assert_never

from nbddp.errors import BadMessageError, TransferError
from nbddp.rank import random_draws, random_states
from nbddp.rank.agent_link import Link
from nbddp.rank.cells import Interrupts, RankShell
from nbddp.rank.exception_text import error_info
from nbddp.rank.user_code_context import Question
from nbddp.rank.values import variable_table
from nbddp.rank.values.fingerprints import Fingerprints
from nbddp.wire import codec
from nbddp.wire.launch_specs import RankLaunch
from nbddp.wire.message_types import ErrorInfo, ValueHeader
from nbddp.wire.messages import (
    BindPushed,
    DescribeAtPrompt,
    DescribeValue,
    PullValue,
    PushValue,
    ReleaseSegment,
    RunStarted,
    SegmentReleased,
    ValueDescribed,
    ValuePulled,
    ValuePushed,
)
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values import pickling, shared_memory
from nbddp.wire.values.shared_memory import Piece
from nbddp.wire.values.value_questions import (
    BlocksOf,
    ContentsOf,
    NamesOf,
    RandomStates,
    RandomStatesOf,
    TreeOf,
    ValueAnswer,
    ValueQuestion,
    VariablesOf,
)

_Result = TypeVar("_Result")


class Variables:
    """Evaluates expressions and binds names in the user's namespace.

    Args:
        shell: has the user's namespace.
        link: sends the answers.
        launch: launch data of this rank.
        interrupts: interrupts the user's code.
    """

    def __init__(
        self, shell: RankShell, link: Link, launch: RankLaunch, interrupts: Interrupts
    ) -> None:
        self._interrupts = interrupts
        self._shell = shell
        self._link = link
        self._rank = launch.rank
        has_arena = launch.pool.use_arena and shared_memory.is_supported()
        self._arena = shared_memory.Arena() if has_arena else None
        self._reassembler = pickling.Reassembler()
        self._held: dict[str, dict[str, Any]] = {}  # complete values by request, not yet bound
        self._fingerprints = Fingerprints(launch.rank)

    def pull(self, request: PullValue) -> None:
        """Evaluate an expression and send its value. No error of the expression ends the rank."""

        def evaluated() -> tuple[ValueHeader, list[Piece]]:
            value = eval(request.expression, self._shell.user_ns)  # noqa: S307 - the user's own
            return pickling.encode_value(value, self._arena if request.use_arena else None)

        result = self._run(request, evaluated)
        if isinstance(result, ErrorInfo):
            self._link.send(
                ValuePulled(
                    request_id=request.request_id, rank=self._rank, value=None, error=result
                )
            )
            return
        header, frames = result
        for part, parts, pieces in pickling.split(header, frames):
            # Copied, since the next cell may change the tensor before it is sent.
            self._link.send(
                ValuePulled(
                    request_id=request.request_id,
                    rank=self._rank,
                    value=header,
                    part=part,
                    parts=parts,
                ),
                [bytes(piece) for piece in pieces],
            )

    def describe(self, request: DescribeValue) -> None:
        """Describe values. No error of the user's code in them ends the rank."""

        def described() -> tuple[ValueDescribed, list[bytes]]:
            return self._described(request.request_id, *self._answer(request.question))

        self._send_described(request.request_id, self._run(request, described))

    def describe_at_prompt(self, request: DescribeAtPrompt, names: dict[str, Any]) -> None:
        """Describe values inside a cell, in the thread of a prompt; see `describe`."""
        question = request.question
        result: tuple[ValueDescribed, list[bytes]] | ErrorInfo
        try:
            if isinstance(question, TreeOf):
                answer: ValueAnswer = self._fingerprints.tree(names, question.expression)
                result = self._described(request.request_id, answer, [])
            else:
                result = self._described(request.request_id, *self._answer(question))
        except KeyboardInterrupt:  # the stop button
            raise
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            result = error_info(error)
        self._send_described(request.request_id, result)

    def _described(
        self, request_id: str, answer: ValueAnswer, frames: list[bytes]
    ) -> tuple[ValueDescribed, list[bytes]]:
        event = ValueDescribed(request_id=request_id, rank=self._rank, answer=answer)
        # msgspec does not check types when it encodes, and the hub drops events that it cannot
        # decode. A wrong type from the user's class is an error here, so no thread waits forever.
        codec.decode_event(codec.encode(event))
        return event, frames

    def _send_described(
        self, request_id: str, result: tuple[ValueDescribed, list[bytes]] | ErrorInfo
    ) -> None:
        if isinstance(result, ErrorInfo):
            self._link.send(
                ValueDescribed(request_id=request_id, rank=self._rank, answer=None, error=result)
            )
        else:
            self._link.send(*result)

    def _answer(self, question: ValueQuestion) -> tuple[ValueAnswer, list[bytes]]:
        match question:
            case TreeOf():
                names = self._shell.user_ns
                return self._fingerprints.tree(names, question.expression, self._describing), []
            case BlocksOf():
                return self._fingerprints.blocks(question), []
            case ContentsOf():
                return self._fingerprints.contents(question)
            case VariablesOf():
                with self._describing():
                    return variable_table.variables(self._shell, question.names), []
            case NamesOf():
                with self._describing():
                    return variable_table.names(self._shell), []
            case RandomStatesOf():
                return self._random_states(), []
            case _:
                assert_never(question)

    def _random_states(self) -> RandomStates:
        draws = self._shell.draws
        return RandomStates(
            random_states.digests(),
            random_draws.of_user(self._shell.user_ns),
            draws.names() if draws is not None else (),
            draws.seeded() if draws is not None else (),
        )

    def _describing(self) -> AbstractContextManager[None]:
        """Return a block in which the user's classes are asked for their parts."""
        question = Question(RankSet.of([self._rank]), "description")
        return self._shell.callbacks.answering(question)

    def forget(self) -> None:
        """Release the value that was described last: no more questions about it will come."""
        self._fingerprints.forget()

    def _run(
        self, request: PullValue | DescribeValue, work: Callable[[], _Result]
    ) -> _Result | ErrorInfo:
        """Run a function that may call the user's code; return its result or its error.

        The user can interrupt it.
        """
        code = 1 + zlib.crc32(request.request_id.encode())
        question = Question(RankSet.of(request.ranks), "pull", code)
        self._interrupts.expect()
        self._link.send(RunStarted(run_id=request.request_id, rank=self._rank))
        try:
            try:
                self._interrupts.arm()
                with self._shell.callbacks.answering(question):
                    return work()
            finally:
                self._interrupts.disarm()
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            return error_info(error)

    def push(self, request: PushValue, frames: list[bytes]) -> None:
        """Build a value once it is complete, and hold it until all ranks have built it."""
        try:
            complete = self._complete(request, frames)
            if complete is None:
                return
            self._held[request.request_id] = pickling.decode_value(
                request.value, complete, self._release_segment
            )
        except (TransferError, BadMessageError) as error:
            reply = ValuePushed(
                request_id=request.request_id, rank=self._rank, error=error_info(error)
            )
        else:
            reply = ValuePushed(request_id=request.request_id, rank=self._rank)
        self._link.send(reply)

    def bind(self, request: BindPushed) -> None:
        """Bind the value that is held for a request, or discard it."""
        self._reassembler.drop(request.request_id)
        names = self._held.pop(request.request_id, {})
        if request.keep:
            self._shell.user_ns.update(names)

    def release(self, request: ReleaseSegment) -> None:
        """Release a segment of this rank's shared memory that the notebook no longer uses."""
        if self._arena is not None:
            self._arena.release(request.segment)

    def _complete(self, request: PushValue, frames: list[bytes]) -> list[Piece] | None:
        header = request.value
        if header.segment >= 0:
            return []
        return self._reassembler.add(
            request.request_id, header, request.part, request.parts, frames
        )

    def _release_segment(self, segment: int) -> None:
        self._link.send(SegmentReleased(rank=self._rank, segment=segment))
