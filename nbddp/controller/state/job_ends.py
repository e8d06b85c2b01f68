"""The ends of the jobs that the nodes belong to, and the warnings before them.

Runs in: the hub thread. Pure.
"""

from collections.abc import Collection
from dataclasses import dataclass

from nbddp.wire.message_types import JOB_LEFT_UNKNOWN_S, JOB_WARNINGS_S, NodeFacts

_MINUTE_S = 60.0
#: Answers that differ by less are of one end: Slurm counts in whole seconds, a job in minutes.
_CHANGED_S = 30.0
#: From here on the time that is left is told in minutes.
_MINUTES_FROM_S = 55.0


#: The names of schedulers in texts.
_NAMES = {"slurm": "Slurm job", "pbs": "PBS job", "lsf": "LSF job", "flux": "Flux job"}


@dataclass(frozen=True)
class JobEnd:
    """The end of a job."""

    scheduler: str  #: as in `NodeFacts`
    job: str  #: the scheduler's name of it
    ends_at: float  #: `time.monotonic`

    @property
    def name(self) -> str:
        """``Slurm job 4711``."""
        return f"{_NAMES.get(self.scheduler, 'job')} {self.job}"

    def text(self, now: float) -> str:
        """Say when it ends.

        >>> JobEnd("slurm", "4711", 7490.0).text(now=0.0), JobEnd("pbs", "7.n", 40.0).text(now=0.0)
        ('Slurm job 4711 ends in 2 h 5 min', 'PBS job 7.n ends in 40 s')
        """
        left_s, job = self.ends_at - now, self.name
        if left_s <= 0:
            return f"{job} has reached its end"
        if left_s < _MINUTES_FROM_S:
            return f"{job} ends in {left_s:.0f} s"
        hours, minutes = divmod(round(left_s / _MINUTE_S), 60)
        return f"{job} ends in {f'{hours} h ' if hours else ''}{minutes} min"

    def is_over(self, now: float) -> bool:
        """Return whether it has come, as exactly as Slurm keeps it."""
        return now >= self.ends_at - _MINUTE_S

    def latest_warning(self, now: float) -> float:
        """Return which warning is due, as seconds before the end; infinite: none is."""
        return min((s for s in JOB_WARNINGS_S if self.ends_at - now <= s), default=float("inf"))


def last_end(nodes: Collection[NodeFacts], ends: Collection[JobEnd]) -> JobEnd | None:
    """Return the end that no node outlives; None: a node is in no job whose end is known.

    Args:
        nodes: of a pool.
        ends: of their jobs, as far as they are known.
    """
    by_job = {end.job: end for end in ends}
    of_nodes = [by_job.get(facts.job) for facts in nodes]
    known = [end for end in of_nodes if end is not None]
    if not known or len(known) < len(of_nodes):
        return None
    return max(known, key=lambda end: end.ends_at)


class JobEnds:
    """Warns 10 minutes, 5 minutes and 1 minute before the end of each job."""

    def __init__(self) -> None:
        self._by_job: dict[str, JobEnd] = {}
        self._warned: dict[str, float] = {}  # the latest warning, as seconds before the end

    def change(self, facts: NodeFacts, left_s: float, now: float) -> str:
        """Note what an agent has found out since then.

        Args:
            facts: of its node.
            left_s: that the job has left.
            now: `time.monotonic`.

        Returns:
            A notice for the user; empty: the end is as it was.
        """
        job = facts.job
        known, end = self._by_job.get(job), JobEnd(facts.scheduler, job, now + left_s)
        self._by_job[job] = end
        if known is not None and abs(known.ends_at - end.ends_at) < _CHANGED_S:
            return ""
        self._warned[job] = end.latest_warning(now)  # this says when it ends
        # An end that was not known: perhaps the scheduler has not answered before.
        return f"{end.text(now)}{': its time limit was changed' if known else ''}"

    def note(self, facts: NodeFacts, now: float) -> None:
        """Note what an agent has said when it came.

        Args:
            facts: of its node.
            now: `time.monotonic`.
        """
        if facts.job_left_s != JOB_LEFT_UNKNOWN_S:
            self._by_job[facts.job] = JobEnd(facts.scheduler, facts.job, now + facts.job_left_s)

    def of(self, nodes: Collection[NodeFacts]) -> tuple[JobEnd, ...]:
        """Return the known ends of the jobs of these nodes, the first one first."""
        jobs = {facts.job for facts in nodes}
        ends = [end for job, end in self._by_job.items() if job in jobs]
        return tuple(sorted(ends, key=lambda end: end.ends_at))

    def warnings(self, ends: Collection[JobEnd], now: float) -> list[str]:
        """Return what the user should know now and has not been told.

        The first call for a job tells nothing: the start of the pool says when it ends.
        """
        texts = []
        for end in ends:
            latest = end.latest_warning(now)
            known = self._warned.setdefault(end.job, latest)
            if latest < known:
                self._warned[end.job] = latest
                texts.append(
                    f"{end.text(now)}, and its ranks with it. Next: %ddp pull what you need, or "
                    "save it in a file"
                )
        return texts
