"""The words about ranks that have exited, raised, or left the debugger, while others wait for them.

Runs in: the notebook's process. Pure.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.phrases import Predicate, RankVerb, subject
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.words.shared import Words, in_turn, they_wait
from nbddp.wire.rank_set import Rank, RankSet

#: The words in which Gloo, the store and ``monitored_barrier`` report an expired timeout.
_TIMED_OUT = re.compile(r"time[d -]*out", re.IGNORECASE)


@dataclass(frozen=True)
class AgentLoss:
    """The loss of the agent of a rank."""

    agent: str  #: which of them, in any words
    was_given_up: bool  #: nobody has told its end: perhaps the process of the rank still runs


def exited_ranks(
    ranks: RankSet,
    how: str,
    next_step: str,
    *,
    where: str = "",
    others: str = "",
    agents: Mapping[Rank, AgentLoss] = MappingProxyType({}),
) -> Words:
    """Return the words about ranks that have exited, in a cell that still runs or has ended.

    Args:
        ranks: the ranks.
        how: the predicate of the headline: ``exited with SIGKILL (signal 9)``.
        next_step: a sentence.
        where: the line that a fatal signal hit, with a preposition and a blank in front.
        others: a sentence about other ranks, with a blank in front.
        agents: the lost agents of those that went with them.
    """
    given_up = RankSet.of(rank for rank, loss in agents.items() if loss.was_given_up)
    with_agents = RankSet.of(agents) - given_up
    alone = ranks - given_up - with_agents
    is_one_kind = ranks in (alone, with_agents, given_up)
    parts = []
    if alone:
        whose = f"of {alone.describe()} {alone.verb('has', 'have')} ended"
        parts = [f"{alone.verb('the process', 'the processes')} {whose}"]
        if is_one_kind:
            parts = [alone.verb("its process has ended", "their processes have ended")]
    if with_agents:
        is_single = len({agents[rank].agent for rank in with_agents}) == 1
        name, has = ("agent", "has") if is_single else ("agents", "have")
        their = f"{with_agents.verb('its', 'their')} {name}"
        whose = their if is_one_kind else f"the {name} of {with_agents.describe()}"
        parts.append(f"{whose} {has} ended")
    if given_up:
        their = f"{given_up.verb('its', 'their')} agent"
        whose = their if is_one_kind else f"the agent of {given_up.describe()}"
        parts.append(f"the connection to {whose} was given up")
    ended = ", and ".join(parts)
    return Words(f"{subject(ranks)} {how}.", f"{ended}{where}.{others}", next_step)


def dead_rank(cause: Cause, reports: RankReports) -> Words:
    """Ranks exited in a cell that still runs."""
    views = {rank: reports.graph.views[rank] for rank in cause.culprits}
    exits = [f"rank {rank}: {view.exit_text}" for rank, view in views.items() if view.exit_text]
    were_lost = all(view.exit_phrase.was_lost for view in views.values())
    verb = RankVerb.LOST.value[1] if were_lost else "exited"
    how = f"{verb} ({'; '.join(exits)})" if exits else verb
    ends = {Predicate.of_end(view.exit_phrase) for view in views.values()}
    if len(ends) == 1 and (len(views) == 1 or verb != "exited"):
        how = ends.pop().describe(len(views))
    how = "; ".join(filter(None, (how, they_wait(cause, reports))))
    agents = {
        rank: AgentLoss(view.exit_text, was_given_up=view.was_given_up)
        for rank, view in views.items()
        if view.lost_agent
    }
    step = _after_lost(RankSet.of(agents)) if agents else _after_exits(cause.culprits)
    return exited_ranks(cause.culprits, how, step, others=in_turn(cause), agents=agents)


def _after_exits(ranks: RankSet) -> str:
    its = ranks.verb("its", "their")
    return f"Look for the reason in {its} last output; the others keep their variables."


def _after_lost(lost: RankSet) -> str:
    """The next step after ranks were lost with their agents: so are their logs, mostly."""
    if 0 in lost:  # without the store of node 0 no group can be formed
        return (
            "Pull what you need of the others, then `%ddp restart`, which asks for another agent "
            "and ends all ranks."
        )
    return f"`%ddp restart -r {lost}` asks for another agent; the others keep their variables."


def first_error(cause: Cause, reports: RankReports) -> Words:
    """Ranks raised an error."""
    ranks = cause.culprits
    first, they = ranks.ranks[0], ranks.describe()
    view = reports.graph.views[first]
    others = "" if len(ranks) == 1 else f" (and {len(ranks) - 1} more raised)"
    step = f"Fix the error on {they}; the others only waited for it."
    if view.error is not None and _TIMED_OUT.search(view.error.summary):
        step = (
            f"Look for what {they} waited for: {ranks.verb('its', 'their')} timeout expired first."
        )
    return Words(
        f"Rank {first} {view.raise_phrase}{others}; {they_wait(cause, reports)}.",
        _have_left(they, cause),
        step,
    )


def left_debugger(cause: Cause, reports: RankReports) -> Words:
    """The user has left the cell in the debugger of ranks."""
    headline = f"{subject(cause.culprits)} left the debugger; {they_wait(cause, reports)}."
    return Words(headline, _have_left(cause.culprits.verb("it", "they"), cause), "")


def _have_left(they: str, cause: Cause) -> str:
    has = cause.culprits.verb("has", "have")
    return f"{they} {has} left the cell and can no longer take part.{in_turn(cause)}"
