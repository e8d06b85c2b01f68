"""Pushes and pulls values between the notebook and ranks, and copies them between ranks.

Runs in: the thread of the caller.
"""

import itertools
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from nbddp.controller.early_interrupts import EarlyInterrupts
from nbddp.controller.hub import Answer, HubThread, RankRequests, Transfer, WaitInterrupt
from nbddp.controller.state import Silence, exception_line
from nbddp.errors import NbddpError, PoolBusyError, TransferError
from nbddp.settings import Settings
from nbddp.wire.flight_recorder import CALLBACK_THREAD
from nbddp.wire.message_types import ErrorInfo, ValueHeader
from nbddp.wire.messages import (
    BindPushed,
    DescribeAtPrompt,
    DescribeValue,
    ForgetValue,
    PullValue,
    PushValue,
    ReleaseSegment,
    ValuePulled,
    ValuePushed,
)
from nbddp.wire.rank_set import Rank, RankSet, ranks_by
from nbddp.wire.values import pickling
from nbddp.wire.values.shared_memory import Arena, Piece, SegmentUnreachableError

#: Of requests, which the hub tells from each other, and from those of a notebook before this one.
_numbers = itertools.count(1)
_OURS = secrets.token_hex(4)


class Exchange:
    """Exchanges values between this process and the ranks of one pool.

    Args:
        hub: carries the messages.
        arena: shared memory that the ranks can open; None: values travel as frames.
        settings: for the time that interrupted ranks get.
    """

    def __init__(self, hub: HubThread, arena: Arena | None, settings: Settings) -> None:
        self._hub = hub
        self._arena = arena
        self._settings = settings

    def pull(self, expression: str, ranks: RankSet) -> list[Any]:
        """Return the value of ``expression`` on each rank, in the order of ranks.

        Raises:
            TransferError: the value could not be evaluated, pickled or built here.
            RequestRefusedError: the pool cannot take the request now.
            WaitInterrupt: the user interrupted; so were the ranks.
        """
        try:
            return self._pull(expression, ranks, use_arena=True)
        except SegmentUnreachableError:
            return self._pull(expression, ranks, use_arena=False)

    def push(self, by_name: Mapping[str, Any], ranks: RankSet) -> None:
        """Bind variables on ranks; if one value cannot be pickled, none is bound.

        Args:
            by_name: the values of the variables.
            ranks: the ranks that get them.

        Raises:
            TransferError: a value cannot be pickled here or built on a rank.
            RequestRefusedError: the pool cannot take the request now.
            WaitInterrupt: the user interrupted; no variable is bound.
        """
        try:
            self._push(by_name, ranks, self._arena)
        except SegmentUnreachableError:
            self._push(by_name, ranks, None)

    def copy(self, name: str, source: Rank, ranks: RankSet) -> None:
        """Bind a variable on ranks to the value that it has on another rank.

        The notebook does not build the value: for a tensor it would import torch, which takes
        seconds, or may not be installed here.

        Args:
            name: of the variable.
            source: the rank that has the value.
            ranks: the ranks that get it.

        Raises:
            TransferError: the value cannot be pickled, or built on a rank.
            RequestRefusedError: the pool cannot take the request now.
            WaitInterrupt: the user interrupted; the variable is not bound.
        """
        encoded: dict[Rank, tuple[ValueHeader, list[Piece]]] = {}

        def keep(rank: Rank, header: ValueHeader, frames: list[Piece]) -> None:
            encoded[rank] = header, frames

        by_name = f"{{{name!r}: {name}}}"
        failure = f"could not copy {name!r}"
        self._pull_encoded(by_name, RankSet.of([source]), keep, encoded, failure, use_arena=False)
        self._push_encoded(*encoded[source], ranks, failure)

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
        """Ask ranks, and wait until each has answered.

        Args:
            ranks: the ranks that are asked.
            request_of: returns the request with this id.
            accept: gets each answer with its frames; returns False if the answer is an error.
            complete: ranks whose answers are complete; ``accept`` adds to it.
            failure: the start of the error, for example ``could not pull 'x'``.
            needs_all: the user cannot leave out a rank.

        Raises:
            TransferError: a rank has answered with an error.
            RequestRefusedError: the pool cannot take the request now.
            WaitInterrupt: the user interrupted; so were the ranks.
        """
        transfer = self._open(ranks, needs_all=needs_all)
        errors: dict[Rank, ErrorInfo] = {}
        try:
            self._hub.send_for(transfer, request_of(transfer.request_id))
            while missing := set(ranks) - set(complete) - set(errors):
                message = transfer.next(missing)
                if message is None:
                    continue
                answer, frames = message
                if not accept(answer, frames):
                    errors[answer.rank] = answer.error or _NO_REASON
        except KeyboardInterrupt:
            with EarlyInterrupts() as more:
                self._hub.interrupt_transfer(transfer)
                raise self._stopped(transfer, RankSet.of([*complete, *errors]), more) from None
        finally:
            with EarlyInterrupts():
                self._hub.close_transfer(transfer)
        _raise_if_any(errors, failure, "")

    def send(self, ranks: RankSet, request: ForgetValue) -> None:
        """Send a request that has no answer."""
        self._hub.send_to_ranks(ranks, request)

    def forget_all(self, ranks: RankSet) -> None:
        """Release the shared memory that these ranks use, which are about to be replaced."""
        if self._arena is not None:
            for rank in ranks:
                self._arena.release_all(rank)

    def _pull(self, expression: str, ranks: RankSet, *, use_arena: bool) -> list[Any]:
        value_by_rank: dict[Rank, Any] = {}

        def build(rank: Rank, header: ValueHeader, frames: list[Piece]) -> None:
            on_release = partial(self._release_segment, rank)
            value_by_rank[rank] = pickling.decode_value(header, frames, on_release)

        failure = f"could not pull {expression!r}"
        self._pull_encoded(expression, ranks, build, value_by_rank, failure, use_arena=use_arena)
        return [value_by_rank[rank] for rank in ranks]

    def _pull_encoded(
        self,
        expression: str,
        ranks: RankSet,
        take: Callable[[Rank, ValueHeader, list[Piece]], None],
        complete: Collection[Rank],
        failure: str,
        *,
        use_arena: bool,
    ) -> None:
        """Call ``take`` with the value of each rank as it has come; the rest as in `ask`."""
        reassembler = pickling.Reassembler()

        def accept(answer: Answer, frames: list[bytes]) -> bool:
            if not isinstance(answer, ValuePulled) or answer.value is None:
                return False
            rank, header = answer.rank, answer.value
            value_frames: list[Piece] | None = []
            if header.segment < 0:
                value_frames = reassembler.add(rank, header, answer.part, answer.parts, frames)
            if value_frames is not None:
                take(rank, header, value_frames)
            return True

        def request_of(request_id: str) -> PullValue:
            return PullValue(
                request_id=request_id,
                expression=expression,
                ranks=tuple(ranks),
                use_arena=use_arena,
            )

        self.ask(ranks, request_of, accept, complete, failure)

    def _stopped(
        self, transfer: Transfer, answered: RankSet, more: EarlyInterrupts
    ) -> WaitInterrupt:
        """Wait a moment for the interrupted ranks, until the user interrupts once more."""
        until = time.monotonic() + self._settings.interrupt_grace_s
        left: dict[Rank, str] = {}
        missing = set(transfer.ranks) - set(answered)
        with suppress(NbddpError):  # a rank, or the pool, has ended
            while missing:
                message = transfer.next(missing, lambda: more.count > 0 or time.monotonic() > until)
                if message is None:
                    break
                answer = message[0]
                missing.discard(answer.rank)
                if answer.error is not None and answer.error.ename == "KeyboardInterrupt":
                    left[answer.rank] = exception_line(answer.error).place
                elif isinstance(answer, ValuePulled):
                    self._discard(answer)
        answered = RankSet.of(set(transfer.ranks) - missing - set(left))
        return WaitInterrupt(answered, left, RankSet.of(missing), self._silences(missing))

    def _silences(self, missing: Iterable[Rank]) -> list[Silence]:
        """The silent nodes of ranks that have not answered."""
        return self._hub.snapshot.silences(RankSet.of(missing), time.monotonic())

    def _push(self, by_name: Mapping[str, Any], ranks: RankSet, arena: Arena | None) -> None:
        try:
            header, frames = pickling.encode_value(dict(by_name), arena, tuple(ranks))
        except TransferError:
            _raise_with_name(by_name)
            raise
        self._push_encoded(header, frames, ranks, f"could not push {', '.join(by_name)}")

    def _push_encoded(
        self, header: ValueHeader, frames: list[Piece], ranks: RankSet, failure: str
    ) -> None:
        transfer = self._open(ranks)
        errors: dict[Rank, ErrorInfo] = {}
        missing = set(ranks)
        keep = False  # until all ranks have the value: either all bind the names, or none
        try:
            for part, parts, pieces in pickling.split(header, frames):
                self._hub.send_for(
                    transfer,
                    PushValue(request_id=transfer.request_id, value=header, part=part, parts=parts),
                    pieces,
                )
            while missing:
                message = transfer.next(missing)
                if message is not None and isinstance(message[0], ValuePushed):
                    answer = message[0]
                    missing.discard(answer.rank)
                    if answer.error is not None:
                        errors[answer.rank] = answer.error
            keep = not errors
        except KeyboardInterrupt:
            keep = False
            answered = RankSet.of(set(ranks) - missing)
            silences = self._silences(missing)
            silent = {rank for each in silences for rank in each.ranks}
            left = dict.fromkeys(sorted(missing - silent), "")
            raise WaitInterrupt(answered, left, RankSet(()), silences) from None
        finally:
            with EarlyInterrupts():
                self._hub.send_for(transfer, BindPushed(request_id=transfer.request_id, keep=keep))
                self._hub.close_transfer(transfer)
        _raise_if_any(errors, failure)

    def _open(self, ranks: RankSet, *, needs_all: bool = False) -> Transfer:
        transfer = self._new_transfer(ranks, needs_all=needs_all)
        self._hub.open_transfer(transfer)
        return transfer

    def _new_transfer(self, ranks: RankSet, *, needs_all: bool = False) -> Transfer:
        request_id = f"value-{_OURS}-{next(_numbers)}"
        hub = self._hub
        return Transfer(request_id, ranks, lambda: hub.is_alive, self._check, needs_all=needs_all)

    def _check(self, missing: set[Rank]) -> None:
        """Raise `PoolBusyError` for a rank that runs a widget's callback and cannot answer."""
        looks = RankRequests(lambda: self._hub).survey().looks
        for rank in sorted(missing.intersection(looks)):
            threads = looks[rank].threads
            is_beside = any(thread.name == CALLBACK_THREAD for thread in threads)
            if looks[rank].activity == "callback" and not is_beside:
                lines = [thread.stack[0] for thread in threads if thread.is_main and thread.stack]
                where = f" ({lines[0]})" if lines else ""
                raise PoolBusyError(
                    f"rank {rank} is in {CALLBACK_THREAD}{where}, and this has to wait until that "
                    "has ended; no variable was changed. Next: wait for it, or %ddp interrupt"
                )

    def _discard(self, answer: ValuePulled) -> None:
        """Discard an answer that has come too late."""
        if answer.value is not None and answer.value.segment >= 0:
            self._release_segment(answer.rank, answer.value.segment)

    def _release_segment(self, rank: Rank, segment: int) -> None:
        """Tell a rank that its shared memory is no longer used; may run in any thread."""
        self._hub.send_to_ranks(RankSet.of([rank]), ReleaseSegment(segment=segment))


def _raise_with_name(by_name: Mapping[str, Any]) -> None:
    """Raise a `TransferError` that names the first value that cannot be pickled."""
    for name, value in by_name.items():
        try:
            pickling.pack(value)
        except TransferError as error:
            raise TransferError(
                f"could not push {name!r}: {error}. No variable was changed"
            ) from None


_NO_REASON = ErrorInfo(ename="TransferError", evalue="no reason was given", traceback=[])


def _raise_if_any(
    errors: dict[Rank, ErrorInfo], failure: str, consequence: str = ". No variable was changed"
) -> None:
    if not errors:
        return
    if any(error.ename == SegmentUnreachableError.__name__ for error in errors.values()):
        raise SegmentUnreachableError(failure)
    by_text = ranks_by(
        (error.evalue if error.ename == "TransferError" else f"{error.ename}: {error.evalue}", rank)
        for rank, error in errors.items()
    )
    reasons = "; ".join(f"{ranks.describe()}: {text}" for text, ranks in by_text.items())
    is_unknown = any(error.ename == NameError.__name__ for error in errors.values())
    step = ". Next: %ddp vars lists the variables of each rank" if is_unknown else ""
    raise TransferError(f"{failure} ({reasons}){consequence}{step}")
