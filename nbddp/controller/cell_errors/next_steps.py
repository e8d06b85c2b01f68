"""The state of the pool after ranks have exited, and the command to run next.

Runs in: the notebook's process. Pure.
"""

from dataclasses import dataclass

from nbddp.controller.state import RunOutcome
from nbddp.wire.rank_set import RankSet


@dataclass(frozen=True)
class AfterExits:
    """Sentences without a period."""

    replaced: str = ""  #: the ranks that got fresh processes; empty: none did
    keeps_others: bool = False  #: the other ranks keep their variables
    failure: str = ""  #: why the pool could not be repaired
    next_step: str = ""

    @property
    def state(self) -> str:
        """All but the next step, for one sentence."""
        return "; ".join(filter(None, (self.replaced, self.failure)))


def after_exits(outcome: RunOutcome) -> AfterExits:
    """Return the state of the pool after a cell in which ranks exited."""
    kept = outcome.ranks("ok", "error", "unfinished")
    their = kept.verb("its", "their")
    fresh = outcome.fresh
    others = RankSet.of(outcome.results) - fresh
    replaced = ""
    if fresh:
        was = (
            "was replaced by a fresh process: its"
            if len(fresh) == 1
            else ("were replaced by fresh processes: their")
        )
        keep = f", those of {others.describe()} are kept" if others else ""
        replaced = f"{fresh.describe()} {was} variables are gone{keep}"
    keeps_others = bool(fresh and others)
    if fresh and not outcome.rebuild_failure:
        step = _catch_up_step(fresh) if others else "run the cells that define them again"
        return AfterExits(replaced, keeps_others, next_step=step)
    if kept and any(r.exited is not None and r.exited.lost_agent for r in outcome.results.values()):
        step = (
            f"pull what you need (x = %ddp pull x -r {kept}), then %ddp stop, and start without "
            f"the lost node   ({kept.describe()} {kept.verb('keeps', 'keep')} {their} variables "
            "until then)"
        )
        return AfterExits(next_step=step)
    if not outcome.rebuild_failure and not outcome.is_plain and kept:
        keep_theirs = f"{kept.verb('keeps', 'keep')} {their} variables"
        step = f"%ddp restart -r {outcome.ranks('exited')}   ({kept.describe()} {keep_theirs})"
        return AfterExits(next_step=step)
    loses = f"   ({kept.describe()} would lose {their} variables too)" if kept else ""
    failure = ""
    if outcome.rebuild_failure:
        failure = f"it could not be repaired: {outcome.rebuild_failure}"
    return AfterExits(replaced, keeps_others, failure, f"%ddp restart{loses}")


def _catch_up_step(fresh: RankSet) -> str:
    """The next step after ranks have ended in a cell, and fresh processes have their places."""
    process = fresh.verb("its new process the variables that it", "their new processes what they")
    return (
        f"Remove what ended {fresh.describe()}. Then %ddp catchup gives {process} "
        f"{fresh.verb('lacks', 'lack')}, and the cell can run again"
    )


def sync_step(fresh: RankSet, kept: RankSet) -> str:
    """The next step after fresh processes have taken the places of some ranks."""
    its, runs = fresh.verb("its", "their"), fresh.verb("it runs", "they run")
    return (
        f"%ddp catchup makes {its} variables again: {runs} the cells that define them, and modules "
        f"and optimizers get the state of rank {kept.ranks[0]}"
    )
