"""Questions to ranks that were asked and are not settled yet.

Runs in: the hub thread. Pure.

    ask(kind, ranks, ...) --> actions that ask --> answers, exits, time --> then(answers, now)
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from nbddp.controller.state import Action
from nbddp.wire.messages import GroupsRebuilt, OperationsAborted, RankDescribed, StackDumped
from nbddp.wire.rank_set import Rank

Answer: TypeAlias = RankDescribed | StackDumped | OperationsAborted | GroupsRebuilt
Kind: TypeAlias = Literal["look", "peek", "arm", "fire", "reform"]
Answers: TypeAlias = Mapping[Rank, Answer]
#: Called with the answers; ranks that did not answer are absent.
Callback: TypeAlias = Callable[[Answers, float], list[Action]]

#: The limits of time hold for this many answers; each further one is read in this time, also where
#: other programs use the processors.
_READ_AT_ONCE, _READ_S = 64, 0.0002
#: While their answers come in, the end is put off to this time after the latest, up to the second.
_READ_ON_S, _MOST_READ_S = 1.0, 15.0


@dataclass
class _Question:
    missing: set[Rank]
    until: float
    latest: float  #: answers put ``until`` off to this time at most
    then: Callback
    answers: dict[Rank, Answer] = field(default_factory=dict)


class PendingAnswers:
    """Questions that are not settled yet. Answers that arrive too late are ignored."""

    def __init__(self, first_number: int = 1) -> None:
        self._numbers = itertools.count(first_number)
        self._open: dict[tuple[Kind, int], _Question] = {}

    def new_number(self) -> int:
        """Return a number that was never used before in this pool."""
        return next(self._numbers)

    def ask(
        self,
        kind: Kind,
        number: int,
        ranks: Iterable[Rank],
        *,
        until: float,
        then: Callback,
    ) -> None:
        """Wait for an answer of each of ``ranks``; the caller sends the request.

        ``then`` is called when all have answered or exited, or at ``until``; without ranks, at the
        next `tick`. The answers of many ranks are read one after another, which takes its time.
        """
        asked = set(ranks)
        latest = until
        if len(asked) > _READ_AT_ONCE:
            until += (len(asked) - _READ_AT_ONCE) * _READ_S
            latest = until + _MOST_READ_S
        self._open[kind, number] = _Question(asked, until, latest, then)

    def is_open(self, kind: Kind, number: int) -> bool:
        """Return whether the question still waits for answers."""
        return (kind, number) in self._open

    def drop(self, kind: Kind, number: int) -> Answers:
        """Drop a question; returns the answers that have arrived."""
        question = self._open.pop((kind, number), None)
        return {} if question is None else question.answers

    def answer_all(self, answers: Iterable[Answer], now: float) -> list[Action]:
        """Take answers, in order."""
        return [action for answer in answers for action in self.answer(answer, now)]

    def answer(self, answer: Answer, now: float) -> list[Action]:
        """Take an answer."""
        key = (_kind_of(answer), answer.number)
        question = self._open.get(key)
        if question is None or answer.rank not in question.missing:
            return []
        question.missing.discard(answer.rank)
        question.answers[answer.rank] = answer
        question.until = max(question.until, min(now + _READ_ON_S, question.latest))
        return self._settled([key], now)

    def put_off(self, busy_s: float) -> None:
        """Let all questions wait so much longer, since no answer could be taken meanwhile."""
        for question in self._open.values():
            question.until += busy_s
            question.latest += busy_s

    def rank_exited(self, rank: Rank, now: float) -> list[Action]:
        """Remove an exited rank from all questions."""
        for question in self._open.values():
            question.missing.discard(rank)
            question.answers.pop(rank, None)
        return self._settled(list(self._open), now)

    def tick(self, now: float) -> list[Action]:
        """Settle the questions that are due."""
        return self._settled(list(self._open), now)

    def next_deadline(self) -> float | None:
        """The time at which the next question is settled, with or without answers."""
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
        case RankDescribed():
            return "look"
        case StackDumped():
            return "peek"
        case OperationsAborted():
            return answer.phase
        case GroupsRebuilt():
            return "reform"


def looks_of(answers: Answers) -> dict[Rank, RankDescribed]:
    """Return the answers that are looks."""
    return {rank: found for rank, found in answers.items() if isinstance(found, RankDescribed)}
