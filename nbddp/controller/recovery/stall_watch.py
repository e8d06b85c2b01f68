"""Watches a cell for ranks that make no progress, and says what is proven and what is only seen.

Runs in: the hub thread. Pure; a part of `nbddp.controller.recovery.machine`.

    Quiet --> Look to all --> diagnose --> proven?  --> Look again --> unchanged? --> verdict
                                      '--> else Peek at the silent --> notice

Two looks make a proof: what has the same version in both was so at the moment at which the second
began, on all ranks at once.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from nbddp.controller.diagnosis.rank_view import RankView
from nbddp.controller.diagnosis.report import Report
from nbddp.controller.recovery.pending_answers import Answers, PendingAnswers
from nbddp.controller.recovery.probes import RankProbes, Views
from nbddp.controller.state.actions import Action, Noticed
from nbddp.wire.rank_set import Rank

#: Looks come at most this often while nothing changes ...
_INTERVAL_S = 0.5
#: ... and at most this often when more ranks make no progress.
_EARLIEST_S = 0.1
#: `Quiet` is repeated more often than this while it lasts.
_QUIET_LASTS_S = 0.8
#: So soon after a rank has left a cell the others are blocked, if they wait for it.
_CHANGED_S = 0.02
#: Whether a thread sleeps in C++ is known when it has been seen twice, so far apart.
_TWICE_S = 0.08
#: A rank that does not tell when it has looked into the store has done so after this time, also on
#: a busy machine; one that tells is asked again, so soon and for so long.
_KEY_HEARD_S, _HEARD_AGAIN_S, _HEARD_LIMIT_S = 0.4, 0.05, 1.0
#: A proof that changes from look to look is left to the next `Quiet`.
_MAX_ROUNDS = 4


class StallWatch:
    """Watches one cell.

    Args:
        run_id: of the cell.
        eyes: look at the ranks.
        questions: shared with the rest of the recovery.
        judge: called with what is proven.
        seen: called with what was seen at any look, proven or not.
    """

    def __init__(
        self,
        run_id: str,
        eyes: RankProbes,
        questions: PendingAnswers,
        *,
        judge: Callable[[Report, Views, float], list[Action]],
        seen: Callable[[Views, float], None],
    ) -> None:
        self._run_id = run_id
        self._eyes = eyes
        self._questions = questions
        self._judge = judge
        self._seen = seen
        self._number = 0  #: of the look or peek that is open
        self._look_at: float | None = None
        self._looked_at = float("-inf")
        self._quiet: set[Rank] = set()
        self._quiet_until: float | None = None
        self._has_told = False
        self._is_seen_twice = False  #: since something has changed
        #: A second look that has to come later, see `Report.confirm_after_s`.
        self._confirm_at: float | None = None
        self._look_later: Callable[[float], list[Action]] = lambda now: []

    def next_deadline(self) -> float | None:
        """When `tick` has something to do."""
        look_at = None if self.is_looking else self._look_at  # the next one waits for its end
        times = (look_at, self._quiet_until, self._confirm_at)
        return min((at for at in times if at is not None), default=None)

    @property
    def is_looking(self) -> bool:
        """Whether an answer is waited for."""
        is_open = self._questions.is_open
        is_asking = is_open("look", self._number) or is_open("peek", self._number)
        return is_asking or self._confirm_at is not None

    def stop(self) -> None:
        """The cell has ended."""
        self._questions.drop("look", self._number)
        self._questions.drop("peek", self._number)
        self._look_at = self._quiet_until = self._confirm_at = None

    def quiet(self, ranks: Iterable[Rank], now: float) -> None:
        """Operations of these ranks do not move."""
        more = set(ranks) - self._quiet
        self._quiet |= more
        self._quiet_until = now + _QUIET_LASTS_S
        self._is_seen_twice = self._is_seen_twice and not more
        pause_s = _EARLIEST_S if more else _INTERVAL_S
        self.look_soon(max(now, self._looked_at + pause_s))

    def rank_left(self, now: float) -> None:
        """A rank has left the cell by an error, or while others make no progress."""
        self._is_seen_twice = False
        self.look_soon(now + _CHANGED_S)

    def look_soon(self, at: float) -> None:
        """Look then, or earlier if that is planned."""
        self._look_at = at if self._look_at is None else min(self._look_at, at)

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        actions: list[Action] = []
        if self._quiet_until is not None and now >= self._quiet_until:
            self._quiet_until = None
            self._quiet.clear()
            if self._has_told:
                self._has_told = False
                actions.append(Noticed(self._run_id, None))
        if self._confirm_at is not None and now >= self._confirm_at:
            self._confirm_at = None
            actions += self._look_later(now)
        if self._look_at is not None and now >= self._look_at and not self.is_looking:
            self._look_at = None
            actions += self._look(1, now)
        return actions

    @property
    def is_quiet(self) -> bool:
        """Whether ranks have made no progress lately."""
        return self._quiet_until is not None

    def _look(self, number: int, now: float) -> list[Action]:
        self._number, actions = self._eyes.look(now, partial(self._looked, number))
        return actions

    def _looked(self, number: int, views: Views, now: float) -> list[Action]:
        self._looked_at = now
        if self._look_at is not None:
            self._look_at = max(self._look_at, now + _EARLIEST_S)
        self._seen(views, now)
        report = self._eyes.diagnose(views, now)
        if report.verdict:
            if number >= _MAX_ROUNDS:
                return []

            first = _First(number, now, report, views)
            return self._look_again(first, now + report.confirm_after_s, now)
        if not self._is_seen_twice:
            self._is_seen_twice = True
            self.look_soon(now + _TWICE_S)
        silent = self._eyes.silent(views)
        if not silent:
            return self._notice(report)

        def peeked(views: Views, _: Answers, now: float) -> list[Action]:
            return self._notice(self._eyes.diagnose(views, now))

        self._number, actions = self._eyes.peek(silent, views, now, peeked)
        return actions

    def _look_again(self, first: "_First", at: float, now: float) -> list[Action]:
        """The second round, now or later."""

        def look(now: float) -> list[Action]:
            confirm = partial(self._confirm, first, now)
            self._number, actions = self._eyes.look(now, confirm, first.report.involved)
            return actions

        if at <= now:
            return look(now)
        self._confirm_at, self._look_later = at, look
        return []

    def _confirm(self, first: "_First", asked_at: float, again: Views, now: float) -> list[Action]:
        report = first.report
        if not all(_is_unchanged(first.views[rank], again[rank]) for rank in report.involved):
            return self._look(first.number + 1, now)
        apart_s = asked_at - first.at
        if not all(_has_looked(again[rank], apart_s) for rank in report.waits_for_store):
            if apart_s >= _HEARD_LIMIT_S:
                return []  # the store does not answer
            return self._look_again(first, now + _HEARD_AGAIN_S, now)
        self._has_told = True
        return self._judge(report, first.views, now)

    def _notice(self, report: Report) -> list[Action]:
        if not report.findings and not self._has_told:
            return []
        self._has_told = bool(report.findings)
        return [Noticed(self._run_id, report if report.findings else None)]


@dataclass(frozen=True)
class _First:
    """The first round of looks of a proof."""

    number: int  #: of tries
    at: float  #: when all had answered
    report: Report
    views: Views


def _has_looked(view: RankView, apart_s: float) -> bool:
    """Whether a rank has looked into the store since the first round, and found no key there.

    Its answer to a question that was asked ``apart_s`` seconds after the first round.
    """
    age_ns = view.look.key_check_age_ns if view.look is not None else None
    return apart_s >= _KEY_HEARD_S if age_ns is None else age_ns <= apart_s * 1e9


def _is_unchanged(first: RankView, again: RankView) -> bool:
    if first.look is None or again.look is None:
        return first.state == again.state == "dead"
    return (first.look.pid, first.look.version) == (again.look.pid, again.look.version)
