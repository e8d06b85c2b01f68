"""Watches a cell for ranks that make no progress, and separates verdicts from mere notices.

Runs in: the hub thread. Pure; a part of `nbddp.controller.recovery.machine`.

    RanksStalled --> DescribeRank to all --> diagnose --> proven?
        yes --> DescribeRank again, brief --> unchanged? --> verdict
        no  --> notice, if all have answered; otherwise DumpStack of the silent ones -->
                DescribeRank again, brief --> unchanged? --> notice

Two looks make a proof: ranks that have the same version in both were in that state at the moment at
which the second look began, all at once. A notice is no proof, but it must not tell of a wait that
is over: the waits for silent ranks take most of a second, in which the others may go on.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from nbddp.controller.diagnosis import RankView, Report
from nbddp.controller.recovery.pending_answers import Answers, PendingAnswers
from nbddp.controller.recovery.probes import RankProbes, Views
from nbddp.controller.state import Action, NoticeChanged
from nbddp.wire.rank_set import Rank, RankSet

#: Least time between two looks while nothing changes ...
_INTERVAL_S = 0.5
#: ... and when more ranks make no progress.
_EARLIEST_S = 0.1
#: `RanksStalled` is repeated more often than this while a stall lasts.
_QUIET_LASTS_S = 0.8
#: This long after a rank has left a cell, ranks that wait for it are blocked.
_CHANGED_S = 0.02
#: Two looks this far apart show whether a thread sleeps in C++.
_TWICE_S = 0.08
#: A rank that does not report when it has checked the store has checked it after the first time,
#: also on a busy machine. A rank that reports it is asked again at the second interval, up to the
#: third limit.
_KEY_CHECK_S, _KEY_RECHECK_S, _KEY_LIMIT_S = 0.4, 0.05, 1.0
#: A proof that changes with each probe is given up after this many probes, until the next
#: `RanksStalled`.
_MAX_ROUNDS = 4


class StallWatch:
    """Watches one cell.

    Args:
        run_id: of the cell.
        probes: probe the ranks.
        questions: shared with the rest of the recovery.
        judge: called with a report that is proven.
        observe: called with the views of each look, proven or not.
    """

    def __init__(
        self,
        run_id: str,
        probes: RankProbes,
        questions: PendingAnswers,
        *,
        judge: Callable[[Report, Views, float], list[Action]],
        observe: Callable[[Views, float], None],
    ) -> None:
        self._run_id = run_id
        self._probes = probes
        self._questions = questions
        self._judge = judge
        self._observe = observe
        self._number = 0  #: number of the open look or peek
        self._look_at: float | None = None
        self._looked_at = float("-inf")
        self._is_outdated = False  #: ranks have made progress since the open look began
        self._quiet: set[Rank] = set()
        self._quiet_until: float | None = None
        self._has_notice = False
        self._is_seen_twice = False  #: since the last change
        #: The time of a second look that has to come later, see `Report.confirm_after_s`.
        self._confirm_at: float | None = None
        self._look_later: Callable[[float], list[Action]] = lambda now: []

    def next_deadline(self) -> float | None:
        """The time at which `tick` has something to do."""
        look_at = None if self.is_looking else self._look_at  # it waits for the end of the open one
        times = (look_at, self._quiet_until, self._confirm_at)
        return min((at for at in times if at is not None), default=None)

    @property
    def is_looking(self) -> bool:
        """True while a look or peek is under way."""
        is_open = self._questions.is_open
        is_asking = is_open("look", self._number) or is_open("peek", self._number)
        return is_asking or self._confirm_at is not None

    def stop(self) -> None:
        """Stop, because the cell has ended."""
        self._questions.drop("look", self._number)
        self._questions.drop("peek", self._number)
        self._look_at = self._quiet_until = self._confirm_at = None

    def quiet(self, ranks: Iterable[Rank], now: float) -> None:
        """Take the report that operations of these ranks do not progress."""
        more = set(ranks) - self._quiet
        self._quiet |= more
        self._quiet_until = now + _QUIET_LASTS_S
        self._is_seen_twice = self._is_seen_twice and not more
        pause_s = _EARLIEST_S if more else _INTERVAL_S
        self.look_soon(max(now, self._looked_at + pause_s))

    def rank_left(self, now: float) -> None:
        """Look soon, because a rank has left by an error, or while others make no progress."""
        self._is_seen_twice = False
        self.look_soon(now + _CHANGED_S)

    def look_soon(self, at: float) -> None:
        """Look at this time, or earlier if that is planned already."""
        self._look_at = at if self._look_at is None else min(self._look_at, at)

    def tick(self, now: float) -> list[Action]:
        """Do everything that is due at ``now``."""
        actions: list[Action] = []
        if self._quiet_until is not None and now >= self._quiet_until:
            self._quiet_until = None
            self._quiet.clear()
            self._is_outdated = self.is_looking
            actions += self._no_notice()
        if self._confirm_at is not None and now >= self._confirm_at:
            self._confirm_at = None
            actions += self._look_later(now)
        if self._has_notice and not self.is_quiet and not self.is_looking:
            self.look_soon(max(now, self._looked_at + _INTERVAL_S))  # no report will end the notice
        if self._look_at is not None and now >= self._look_at and not self.is_looking:
            self._look_at = None
            self._is_outdated = False
            actions += self._look(1, now)
        return actions

    @property
    def is_quiet(self) -> bool:
        """True if ranks have made no progress lately."""
        return self._quiet_until is not None

    def _look(self, number: int, now: float) -> list[Action]:
        self._number, actions = self._probes.look(now, partial(self._looked, number))
        return actions

    def _looked(self, number: int, views: Views, now: float) -> list[Action]:
        self._looked_at = now
        if self._look_at is not None:
            self._look_at = max(self._look_at, now + _EARLIEST_S)
        self._observe(views, now)
        report = self._probes.diagnose(views, now)
        if report.verdict:
            if number >= _MAX_ROUNDS:
                return []

            first = _FirstRound(number, now, report, views)
            return self._look_again(first, now + report.confirm_after_s, now)
        if not self._is_seen_twice:
            self._is_seen_twice = True
            self.look_soon(now + _TWICE_S)
        silent = self._probes.silent(views)
        if not silent:
            return self._notice(report)

        def peeked(views: Views, _: Answers, now: float) -> list[Action]:
            return self._notice_if_unchanged(self._probes.diagnose(views, now), views, now)

        self._number, actions = self._probes.peek(silent, views, now, peeked)
        return actions

    def _look_again(self, first: "_FirstRound", at: float, now: float) -> list[Action]:
        """Begin the second round, now or later."""

        def look(now: float) -> list[Action]:
            confirm = partial(self._confirm, first, now)
            involved = first.report.involved
            self._number, actions = self._probes.look(now, confirm, involved, is_brief=True)
            return actions

        if at <= now:
            return look(now)
        self._confirm_at, self._look_later = at, look
        return []

    def _confirm(
        self, first: "_FirstRound", asked_at: float, views: Views, now: float
    ) -> list[Action]:
        report = first.report
        if not all(_is_unchanged(first.views[rank], views[rank]) for rank in report.involved):
            return self._look(first.number + 1, now)
        apart_s = asked_at - first.at
        if not all(_has_looked(views[rank], apart_s) for rank in report.waits_for_store):
            if apart_s >= _KEY_LIMIT_S:
                return []  # the store does not answer
            return self._look_again(first, now + _KEY_RECHECK_S, now)
        actions = self._judge(report, first.views, now)
        self._has_notice = self._has_notice or any(
            isinstance(action, NoticeChanged) and action.report is not None for action in actions
        )
        return actions

    def _notice_if_unchanged(self, report: Report, views: Views, now: float) -> list[Action]:
        """Give the notice if the ranks that wait, as it says, still do."""
        waiting = {rank for each in report.findings for rank in each.waiting}
        answered = RankSet.of(rank for rank in waiting if views[rank].look is not None)
        if not answered or self._is_outdated:
            return self._notice(report)

        def looked(again: Views, now: float) -> list[Action]:
            if any(again[rank].look is None for rank in answered):
                return []  # not known: the next look shows it
            if all(_is_unchanged(views[rank], again[rank]) for rank in answered):
                return self._notice(report)
            self.look_soon(now + _EARLIEST_S)
            return self._no_notice()

        self._number, actions = self._probes.look(now, looked, answered, is_brief=True)
        return actions

    def _notice(self, report: Report) -> list[Action]:
        if not report.findings or self._is_outdated:
            return self._no_notice()
        self._has_notice = True
        return [NoticeChanged(self._run_id, report)]

    def _no_notice(self) -> list[Action]:
        """Take back the notice, if there is one."""
        had, self._has_notice = self._has_notice, False
        return [NoticeChanged(self._run_id, None)] if had else []


@dataclass(frozen=True)
class _FirstRound:
    """The first round of looks of a proof."""

    number: int  #: number of this try
    at: float  #: time at which all had answered
    report: Report
    views: Views


def _has_looked(view: RankView, apart_s: float) -> bool:
    """Return whether a rank has checked the store since the first round, and found no key there.

    Args:
        view: its answer in the second round.
        apart_s: time between the two rounds.
    """
    age_ns = view.look.key_check_age_ns if view.look is not None else None
    return apart_s >= _KEY_CHECK_S if age_ns is None else age_ns <= apart_s * 1e9


def _is_unchanged(first: RankView, second: RankView) -> bool:
    if first.look is None or second.look is None:
        return first.state == second.state == "dead"
    return (first.look.pid, first.look.version) == (second.look.pid, second.look.version)
