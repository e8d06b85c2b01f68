"""Pushes and pulls values between the notebook and ranks.

Runs in: the thread that pulls, pushes or asks.
"""

import itertools
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from nbddp.controller.early_interrupts import EarlyInterrupts
from nbddp.controller.hub.queries import RankQueries
from nbddp.controller.hub.thread import HubThread
from nbddp.controller.hub.transfer import Answer, Transfer, WaitInterrupt
from nbddp.controller.state.exit_text import exception_line
from nbddp.errors import NbddpError, PoolBusyError, TransferError
from nbddp.settings import Settings
from nbddp.wire.flight_recorder.schema import CALLBACK_THREAD
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import (
    BindPushed,
    DescribeValue,
    ForgetValue,
    PullValue,
    PushValue,
    ReleaseSegment,
    ValuePulled,
    ValuePushed,
)
from nbddp.wire.rank_set import Rank, RankSet
from nbddp.wire.values import pickling
from nbddp.wire.values.shared_memory import Arena, Piece, SegmentUnreachableError


class Exchange:
    """Values between this process and the ranks of one pool."""

    def __init__(self, hub: HubThread, arena: Arena | None, settings: Settings) -> None:
        self._hub = hub
        self._arena = arena
        self._settings = settings
        self._numbers = itertools.count(1)

    def pull(self, expression: str, ranks: RankSet) -> list[Any]:
        """The value of ``expression`` on each rank, in the order of ranks.

        Raises:
            TransferError: it could not be evaluated, pickled or built here.
            RequestRefusedError: the pool does not take it now.
            WaitInterrupt: interrupted; the ranks were, too.
        """
        try:
            return self._pull(expression, ranks, use_arena=True)
        except SegmentUnreachableError:
            return self._pull(expression, ranks, use_arena=False)

    def push(self, by_name: Mapping[str, Any], ranks: RankSet) -> None:
        """Bind names on ranks; if a value cannot be pickled, none is bound.

        Raises:
            TransferError: a value cannot be pickled here or built there.
            RequestRefusedError: the pool does not take it now.
            WaitInterrupt: interrupted; no name is bound.
        """
        try:
            self._push(by_name, ranks, self._arena)
        except SegmentUnreachableError:
            self._push(by_name, ranks, None)

    def ask(
        self,
        ranks: RankSet,
        request_of: Callable[[str], PullValue | DescribeValue],
        take: Callable[[Answer, list[bytes]], bool],
        told: Collection[Rank],
        failure: str,
    ) -> None:
        """Ask ranks, and wait until each has answered.

        Args:
            ranks: who is asked.
            request_of: the request, by its id.
            take: takes an answer with its frames; False: there is nothing in it.
            told: ranks whose answers are complete; ``take`` adds to it.
            failure: begins the error, for example ``could not pull 'x'``.

        Raises:
            TransferError: a rank has answered with an error.
            RequestRefusedError: the pool does not take it now.
            WaitInterrupt: interrupted; the ranks were, too.
        """
        transfer = self._open(ranks)
        errors: dict[Rank, ErrorInfo] = {}
        try:
            self._hub.send_for(transfer, request_of(transfer.request_id))
            while missing := set(ranks) - set(told) - set(errors):
                came = transfer.next(missing)
                if came is None:
                    continue
                answer, frames = came
                if not take(answer, frames):
                    errors[answer.rank] = answer.error or _NO_REASON
        except KeyboardInterrupt:
            with EarlyInterrupts() as more:
                self._hub.interrupt_transfer(transfer)
                raise self._stopped(transfer, RankSet.of([*told, *errors]), more) from None
        finally:
            with EarlyInterrupts():
                self._hub.close_transfer(transfer)
        _raise_if_any(errors, failure, "")

    def send(self, ranks: RankSet, request: ForgetValue) -> None:
        """Nobody waits for what ranks do about it."""
        self._hub.send_to_ranks(ranks, request)

    def forget_all(self, ranks: RankSet) -> None:
        """These ranks are about to be replaced; nothing that they hold will be released."""
        if self._arena is not None:
            for rank in ranks:
                self._arena.release_all(rank)

    def _pull(self, expression: str, ranks: RankSet, *, use_arena: bool) -> list[Any]:
        reassembler = pickling.Reassembler()
        found: dict[Rank, Any] = {}

        def take(answer: Answer, frames: list[bytes]) -> bool:
            if not isinstance(answer, ValuePulled) or answer.value is None:
                return False
            rank, header = answer.rank, answer.value
            complete: list[Piece] | None = []
            if header.segment < 0:
                complete = reassembler.add(rank, header, answer.part, answer.parts, frames)
            if complete is not None:
                found[rank] = pickling.decode_value(header, complete, partial(self._let_go, rank))
            return True

        def request_of(request_id: str) -> PullValue:
            return PullValue(
                request_id=request_id,
                expression=expression,
                ranks=tuple(ranks),
                use_arena=use_arena,
            )

        self.ask(ranks, request_of, take, found, f"could not pull {expression!r}")
        return [found[rank] for rank in ranks]

    def _stopped(
        self, transfer: Transfer, answered: RankSet, more: EarlyInterrupts
    ) -> WaitInterrupt:
        """Wait a moment for ranks that were interrupted, but not after one ``more``."""
        until = time.monotonic() + self._settings.interrupt_grace_s
        left: dict[Rank, str] = {}
        missing = set(transfer.ranks) - set(answered)
        with suppress(NbddpError):  # a rank, or the pool, has ended
            while missing:
                came = transfer.next(missing, lambda: more.count > 0 or time.monotonic() > until)
                if came is None:
                    break
                answer = came[0]
                missing.discard(answer.rank)
                if answer.error is not None and answer.error.ename == "KeyboardInterrupt":
                    left[answer.rank] = exception_line(answer.error).place
                elif isinstance(answer, ValuePulled):
                    self._let_go_of(answer)
        answered = RankSet.of(set(transfer.ranks) - missing - set(left))
        return WaitInterrupt(answered, left, RankSet.of(missing))

    def _push(self, by_name: Mapping[str, Any], ranks: RankSet, arena: Arena | None) -> None:
        try:
            header, frames = pickling.encode_value(dict(by_name), arena, tuple(ranks))
        except TransferError:
            _raise_with_name(by_name)
            raise
        transfer = self._open(ranks)
        errors: dict[Rank, ErrorInfo] = {}
        missing = set(ranks)
        keep = False  # not before all have it complete: either every rank binds the names, or none
        try:
            for part, parts, pieces in pickling.split(header, frames):
                self._hub.send_for(
                    transfer,
                    PushValue(request_id=transfer.request_id, value=header, part=part, parts=parts),
                    pieces,
                )
            while missing:
                came = transfer.next(missing)
                if came is not None and isinstance(came[0], ValuePushed):
                    missing.discard(came[0].rank)
                    if came[0].error is not None:
                        errors[came[0].rank] = came[0].error
            keep = not errors
        except KeyboardInterrupt:
            keep = False
            answered = RankSet.of(set(ranks) - missing)
            raise WaitInterrupt(answered, dict.fromkeys(sorted(missing), ""), RankSet(())) from None
        finally:
            with EarlyInterrupts():
                self._hub.send_for(transfer, BindPushed(request_id=transfer.request_id, keep=keep))
                self._hub.close_transfer(transfer)
        _raise_if_any(errors, f"could not push {', '.join(by_name)}")

    def _open(self, ranks: RankSet) -> Transfer:
        request_id = f"value-{next(self._numbers)}"
        transfer = Transfer(request_id, ranks, lambda: self._hub.is_alive, self._look)
        self._hub.open_transfer(transfer)
        return transfer

    def _look(self, missing: set[Rank]) -> None:
        """Raise for a rank that cannot answer before a callback of a widget has ended, if ever."""
        looks = RankQueries(lambda: self._hub).survey().looks
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

    def _let_go_of(self, answer: ValuePulled) -> None:
        """It has come too late."""
        if answer.value is not None and answer.value.segment >= 0:
            self._let_go(answer.rank, answer.value.segment)

    def _let_go(self, rank: Rank, segment: int) -> None:
        """The last object that used a rank's shared memory is gone; may run in any thread."""
        self._hub.send_to_ranks(RankSet.of([rank]), ReleaseSegment(segment=segment))


def _raise_with_name(by_name: Mapping[str, Any]) -> None:
    """One of these cannot be pickled: say which."""
    for name, value in by_name.items():
        try:
            pickling.pack(value)
        except TransferError as error:
            raise TransferError(
                f"could not push {name!r}: {error}. No variable was changed"
            ) from None


_NO_REASON = ErrorInfo(ename="TransferError", evalue="no reason was given", traceback=[])


def _raise_if_any(
    errors: dict[Rank, ErrorInfo], what: str, so: str = ". No variable was changed"
) -> None:
    if not errors:
        return
    if any(error.ename == SegmentUnreachableError.__name__ for error in errors.values()):
        raise SegmentUnreachableError(what)
    by_text: dict[str, list[Rank]] = {}
    for rank, error in errors.items():
        text = error.evalue if error.ename == "TransferError" else f"{error.ename}: {error.evalue}"
        by_text.setdefault(text, []).append(rank)
    reasons = "; ".join(
        f"{RankSet.of(ranks).describe()}: {text}" for text, ranks in by_text.items()
    )
    raise TransferError(f"{what} ({reasons}){so}")
