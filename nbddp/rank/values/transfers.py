"""Variables on their way out of and into a rank.

Runs in: the rank process, main thread, between cells.
"""

from typing import Any

from nbddp.errors import BadMessageError, TransferError
from nbddp.rank.agent_link import Link
from nbddp.rank.cells.executor import Interrupts
from nbddp.rank.cells.shell import RankShell
from nbddp.rank.exception_text import error_info
from nbddp.rank.user_code_context import Question
from nbddp.wire.launch_specs import RankLaunch
from nbddp.wire.messages import (
    BindPushed,
    PullValue,
    PushValue,
    ReleaseSegment,
    RunStarted,
    SegmentReleased,
    ValuePulled,
    ValuePushed,
)
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values import pickling, shared_memory
from nbddp.wire.values.shared_memory import Piece


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

    def pull(self, request: PullValue) -> None:
        """Evaluate and send. Nothing that the expression does can end the rank."""
        question = Question(RankSet.of(request.ranks), is_pull=True)
        self._interrupts.expect()
        self._link.send(RunStarted(run_id=request.request_id, rank=self._rank))
        try:
            try:
                self._interrupts.arm()
                with self._shell.callbacks.asked(question):
                    value = eval(request.expression, self._shell.user_ns)  # noqa: S307 - the user's own
                    use_arena = self._arena if request.use_arena else None
                    header, frames = pickling.encode_value(value, use_arena)
            finally:
                self._interrupts.disarm()
        except BaseException as error:  # noqa: BLE001 - the user's expression may raise anything
            self._link.send(
                ValuePulled(
                    request_id=request.request_id,
                    rank=self._rank,
                    value=None,
                    error=error_info(error),
                )
            )
            return
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
