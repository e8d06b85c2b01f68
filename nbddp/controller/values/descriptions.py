"""Asks ranks about their values: fingerprints, a few words, a few blocks of bytes.

Runs in: the thread that asks.

    Descriptions --DescribeValue--> ranks --ValueDescribed, blocks as frames--> Descriptions
"""

from collections.abc import Callable
from typing import TypeVar

from nbddp.controller.hub.transfer import Answer
from nbddp.controller.values.push_pull import Exchange
from nbddp.wire.messages import DescribeValue, ForgetValue, ValueDescribed
from nbddp.wire.rank_set import Rank, RankSet
from nbddp.wire.values.fingerprints import (
    BlockContents,
    BytesByPath,
    ContentsOf,
    TensorBlocks,
    Tree,
    ValueAnswer,
    ValueQuestion,
    Variables,
)

_Told = TypeVar("_Told", Tree, TensorBlocks, Variables)
_Read = TypeVar("_Read")


class Descriptions:
    """What some ranks tell of their values, in the order of ranks.

    Each question raises:
        TransferError: a rank could not tell it.
        RequestRefusedError: the pool does not take it now.
        WaitInterrupt: interrupted; the ranks were, too.

    Args:
        exchange: carries questions and answers.
        ranks: who is asked.
        failure: begins the error, for example ``could not compare 'x'``.
    """

    def __init__(self, exchange: Exchange, ranks: RankSet, failure: str) -> None:
        self._exchange = exchange
        self._failure = failure
        self._ranks = ranks

    def ask(self, question: ValueQuestion, kind: type[_Told]) -> list[_Told]:
        """Answers of this kind, which is that of the question."""

        def read(answer: ValueAnswer | None, _: list[bytes]) -> _Told | None:
            return answer if isinstance(answer, kind) else None

        return self._ask(question, read)

    def contents(self, question: ContentsOf) -> list[BytesByPath]:
        """The bytes of blocks, by path and number."""

        def read(answer: ValueAnswer | None, frames: list[bytes]) -> BytesByPath | None:
            return answer.with_bytes(frames) if isinstance(answer, BlockContents) else None

        return self._ask(question, read)

    def _ask(
        self,
        question: ValueQuestion,
        read: Callable[[ValueAnswer | None, list[bytes]], _Read | None],
    ) -> list[_Read]:
        told: dict[Rank, _Read] = {}

        def take(answer: Answer, frames: list[bytes]) -> bool:
            found = read(answer.answer, frames) if isinstance(answer, ValueDescribed) else None
            if found is not None:
                told[answer.rank] = found
            return found is not None

        def request_of(request_id: str) -> DescribeValue:
            ranks = self._ranks.ranks
            return DescribeValue(request_id=request_id, question=question, ranks=ranks)

        self._exchange.ask(self._ranks, request_of, take, told, self._failure)
        return [told[rank] for rank in self._ranks]

    def forget(self) -> None:
        """No more will be asked of the value that was described; nobody waits for that."""
        self._exchange.send(self._ranks, ForgetValue())
