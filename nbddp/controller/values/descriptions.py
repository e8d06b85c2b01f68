"""Asks ranks to describe their values: fingerprints, short texts, a few blocks of bytes.

Runs in: the thread of the caller.

    Descriptions --DescribeValue--> ranks --ValueDescribed, blocks as frames--> Descriptions
"""

from collections.abc import Callable
from typing import TypeVar

from nbddp.controller.hub import Answer
from nbddp.controller.values.push_pull import Exchange
from nbddp.wire.messages import DescribeValue, ForgetValue, ValueDescribed
from nbddp.wire.rank_set import Rank, RankSet
from nbddp.wire.values.value_questions import (
    BlockContents,
    BytesByPath,
    ContentsOf,
    Names,
    RandomStates,
    TensorBlocks,
    Tree,
    ValueAnswer,
    ValueQuestion,
    Variables,
)

Described = TypeVar("Described", Tree, TensorBlocks, Variables, Names, RandomStates)
_Content = TypeVar("_Content")


class Descriptions:
    """Questions to some ranks about their values.

    Args:
        exchange: carries questions and answers.
        ranks: the ranks that are asked.
        failure: the start of the error, for example ``could not compare 'x'``.
        needs_all: the user cannot leave out a rank.
    """

    def __init__(
        self, exchange: Exchange, ranks: RankSet, failure: str, *, needs_all: bool = False
    ) -> None:
        self._needs_all = needs_all
        self._exchange = exchange
        self._failure = failure
        self._ranks = ranks

    def ask(self, question: ValueQuestion, kind: type[Described]) -> list[Described]:
        """Ask all ranks.

        Args:
            question: any question but `ContentsOf`.
            kind: the type of its answer.

        Returns:
            The answers, in the order of ranks.

        Raises:
            TransferError: a rank could not answer.
            RequestRefusedError: the pool cannot take the question now.
            WaitInterrupt: the user interrupted; so were the ranks.
        """

        def read(answer: ValueAnswer | None, _: list[bytes]) -> Described | None:
            return answer if isinstance(answer, kind) else None

        return self._ask(question, read)

    def contents(self, question: ContentsOf) -> list[BytesByPath]:
        """Return the bytes of blocks, by path and number, in the order of ranks; see `ask`."""

        def read(answer: ValueAnswer | None, frames: list[bytes]) -> BytesByPath | None:
            return answer.with_bytes(frames) if isinstance(answer, BlockContents) else None

        return self._ask(question, read)

    def _ask(
        self,
        question: ValueQuestion,
        read: Callable[[ValueAnswer | None, list[bytes]], _Content | None],
    ) -> list[_Content]:
        content_by_rank: dict[Rank, _Content] = {}

        def accept(answer: Answer, frames: list[bytes]) -> bool:
            content = read(answer.answer, frames) if isinstance(answer, ValueDescribed) else None
            if content is not None:
                content_by_rank[answer.rank] = content
            return content is not None

        def request_of(request_id: str) -> DescribeValue:
            ranks = self._ranks.ranks
            return DescribeValue(request_id=request_id, question=question, ranks=ranks)

        ranks, failure, needs_all = self._ranks, self._failure, self._needs_all
        self._exchange.ask(ranks, request_of, accept, content_by_rank, failure, needs_all=needs_all)
        return [content_by_rank[rank] for rank in self._ranks]

    def forget(self) -> None:
        """Release the value that was described last on all ranks, without waiting for them."""
        self._exchange.send(self._ranks, ForgetValue())
