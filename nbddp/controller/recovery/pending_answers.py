"""Questions to ranks that are answered once, or not in time.

Runs in: the hub thread. Pure.

    ask(kind, ranks, ...) --> actions that ask --> answers, exits, time --> then(answers, now)
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from nbddp.controller.state.actions import Action
from nbddp.wire.messages import Freed, Looked, Peeked, Reformed
from nbddp.wire.rank_set import Rank, RankSet

Answer: TypeAlias = Looked | Peeked | Freed | Reformed
Kind: TypeAlias = Literal["look", "peek", "arm", "fire", "reform"]
Answers: TypeAlias = Mapping[Rank, Answer]
#: What is done with the answers; ranks that did not answer are not among them.
Then: TypeAlias = Callable[[Answers, float], list[Action]]


@dataclass
class _Question:
    missing: set[Rank]
    until: float
    then: Then
    answers: dict[Rank, Answer] = field(default_factory=dict)


class PendingAnswers:
    """What was asked and is not settled yet. Answers that come too late are ignored."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[tuple[Kind, int], _Question] = {}

    def new_number(self) -> int:
        """A number that was never used before in this pool."""
        return next(self._numbers)

    def ask(
        self,
        kind: Kind,
        number: int,
        ranks: Iterable[Rank],
        *,
        until: float,
        then: Then,
    ) -> None:
        """Wait for an answer of each of ``ranks``; the caller sends the request.

        ``then`` is called when all have answered or exited, or at ``until``; without ranks, at the
        next `tick`.
        """
        self._open[kind, number] = _Question(set(ranks), until, then)

    def is_open(self, kind: Kind, number: int) -> bool:
        """Whether answers are still waited for."""
        return (kind, number) in self._open

    def drop(self, kind: Kind, number: int) -> Answers:
        """Ask no longer; gives the answers that have come."""
        question = self._open.pop((kind, number), None)
        return {} if question is None else question.answers

    def answer(self, answer: Answer, now: float) -> list[Action]:
        """An answer has come."""
        key = (_kind_of(answer), answer.number)
        question = self._open.get(key)
        if question is None or answer.rank not in question.missing:
            return []
        question.missing.discard(answer.rank)
        question.answers[answer.rank] = answer
        return self._settled([key], now)

    def rank_exited(self, rank: Rank, now: float) -> list[Action]:
        """A rank will answer nothing."""
        for question in self._open.values():
            question.missing.discard(rank)
            question.answers.pop(rank, None)
        return self._settled(list(self._open), now)

    def tick(self, now: float) -> list[Action]:
        """Settle what is due."""
        return self._settled(list(self._open), now)

    def next_deadline(self) -> float | None:
        """When the next question is settled, whoever has answered."""
        return min((question.until for question in self._open.values()), default=None)

    def _settled(self, keys: list[tuple[Kind, int]], now: float) -> list[Action]:
        actions: list[Action] = []
        for key in keys:
            question = self._open.get(key)
            if question is not None and (not question.missing or now >= question.until):
                del self._open[key]
                actions += question.then(question.answers, now)
        return actions


def _kind_of(answer: Answer) -> Kind:
    match answer:
        case Looked():
            return "look"
        case Peeked():
            return "peek"
        case Freed():
            return answer.phase
        case Reformed():
            return "reform"


def looks_of(answers: Answers) -> dict[Rank, Looked]:
    """Those that are looks."""
    return {rank: found for rank, found in answers.items() if isinstance(found, Looked)}


def ranks_of(answers: Answers) -> RankSet:
    """Who has answered."""
    return RankSet.of(answers)
