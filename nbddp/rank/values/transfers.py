"""Variables on their way out of and into a rank, and what is told of them.

Runs in: the rank process, main thread, between cells.
"""

from collections.abc import Callable
from typing import Any, TypeVar, assert_never

from nbddp.errors import BadMessageError, TransferError
from nbddp.rank.agent_link import Link
from nbddp.rank.cells.executor import Interrupts
from nbddp.rank.cells.shell import RankShell
from nbddp.rank.exception_text import error_info
from nbddp.rank.user_code_context import Question
from nbddp.rank.values import variable_table
from nbddp.rank.values.fingerprints import Fingerprints
from nbddp.wire import codec
from nbddp.wire.launch_specs import RankLaunch
from nbddp.wire.message_types import ErrorInfo, ValueHeader
from nbddp.wire.messages import (
    BindPushed,
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
from nbddp.wire.values.fingerprints import (
    BlocksOf,
    ContentsOf,
    TreeOf,
    ValueAnswer,
    ValueQuestion,
    VariablesOf,
)
from nbddp.wire.values.shared_memory import Piece

_Found = TypeVar("_Found")


class Variables:
    """Evaluates and binds names in the user's namespace."""

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
        self._held: dict[str, dict[str, Any]] = {}  # by request: complete, not yet bound
        self._fingerprints = Fingerprints(launch.rank)

    def pull(self, request: PullValue) -> None:
        """Evaluate and send. Nothing that the expression does can end the rank."""

        def evaluated() -> tuple[ValueHeader, list[Piece]]:
            value = eval(request.expression, self._shell.user_ns)  # noqa: S307 - the user's own
            return pickling.encode_value(value, self._arena if request.use_arena else None)

        found = self._run(request, evaluated)
        if isinstance(found, ErrorInfo):
            self._link.send(
                ValuePulled(request_id=request.request_id, rank=self._rank, value=None, error=found)
            )
            return
        header, frames = found
        for part, parts, pieces in pickling.split(header, frames):
            # Copied, since the next cell may change the tensor before it has left.
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
        """Tell of values. Nothing that the user's code in them does can end the rank."""

        def described() -> tuple[ValueDescribed, list[bytes]]:
            answer, frames = self._answer(request.question)
            told = ValueDescribed(request_id=request.request_id, rank=self._rank, answer=answer)
            # msgspec does not check what it writes, and the hub drops what it cannot read: an odd
            # type in a class of the user's is an error here, and nobody waits for ever.
            codec.decode_event(codec.encode(told))
            return told, frames

        found = self._run(request, described)
        if isinstance(found, ErrorInfo):
            told = ValueDescribed(
                request_id=request.request_id, rank=self._rank, answer=None, error=found
            )
            self._link.send(told)
        else:
            self._link.send(*found)

    def _answer(self, question: ValueQuestion) -> tuple[ValueAnswer, list[bytes]]:
        match question:
            case TreeOf():
                return self._fingerprints.tree(self._shell.user_ns, question.expression), []
            case BlocksOf():
                return self._fingerprints.blocks(question), []
            case ContentsOf():
                return self._fingerprints.contents(question)
            case VariablesOf():
                return variable_table.variables(self._shell, question.names), []
            case _:
                assert_never(question)

    def forget(self) -> None:
        """Nobody will ask for more of the value that was described."""
        self._fingerprints.forget()

    def _run(
        self, request: PullValue | DescribeValue, work: Callable[[], _Found]
    ) -> _Found | ErrorInfo:
        """Run what may call code of the user's, which can be interrupted; gives its error."""
        question = Question(RankSet.of(request.ranks), is_pull=True)
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
        """Build the value once it is complete, and hold it: other ranks may not be able to."""
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
        """Bind what is held for a request, or forget it."""
        self._reassembler.drop(request.request_id)
        names = self._held.pop(request.request_id, {})
        if request.keep:
            self._shell.user_ns.update(names)

    def release(self, request: ReleaseSegment) -> None:
        """The notebook has let go of a value that lies in our shared memory."""
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
