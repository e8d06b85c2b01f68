"""The table of ``%ddp pools``, and moments as a reader of the notebook writes them.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Sequence
from datetime import datetime

from nbddp.system.kept_pools import KnownPool

_HEADINGS = ("pool", "ranks", "options", "state", "since", "until", "kernel")
#: So many machines are named.
_NAMED = 4


def moment(at: float, now: float) -> str:
    """``17:02``, or ``25 Nov 17:02`` on another day.

    Args:
        at: seconds since 1970, here and below.
        now: the present.
    """
    there, here = (datetime.fromtimestamp(each).astimezone() for each in (at, now))
    time = f"{there:%H:%M}"
    return time if there.date() == here.date() else f"{there.day} {there:%b} {time}"


def until_text(until: float, job: str, job_ends_at: float, now: float) -> str:
    """``17:02``, or ``16:30, when Slurm job 8 ends``, if that is earlier.

    Args:
        until: a pool is kept until then, if its job lives.
        job: in words; empty: none is known.
        job_ends_at: when it ends, as was known when the pool had a kernel.
        now: the present.
    """
    if not job or until <= job_ends_at or until < now:
        return moment(until, now)
    if job_ends_at < now:  # its time limit was changed, or its end was not noticed
        return f"{moment(until, now)}, if {job} goes on"
    return f"{moment(job_ends_at, now)}, when {job} ends"


def pools_table(pools: Sequence[KnownPool], now: float, pid: int) -> str:
    """The pools of this user, a line for each.

    Args:
        pools: in the order of the lines.
        now: the present.
        pid: of this process.
    """
    rows = [_HEADINGS, *(_row(pool, now, pid) for pool in pools)]
    if any(pool.hosts for pool in pools):
        nodes = ["nodes", *(_nodes(pool.hosts) for pool in pools)]
        rows = [(*row, cell) for row, cell in zip(rows, nodes, strict=True)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    ended = [f"{pool.pool_id}: {pool.reason}" for pool in pools if pool.state == "ended"]
    return "\n".join([*lines, *ended])


def _row(pool: KnownPool, now: float, pid: int) -> tuple[str, ...]:
    kernel = ""
    if pool.pid:
        kernel = "this one" if pool.pid == pid else f"process {pool.pid}"
    elif pool.notebook_host:
        kernel = f"on {pool.notebook_host}"
    return (
        pool.pool_id,
        str(pool.world_size),
        pool.described,
        pool.state,
        moment(pool.since, now),
        _until(pool, now),
        kernel,
    )


def _until(pool: KnownPool, now: float) -> str:
    if pool.until is None:
        return ""
    until = until_text(pool.until, pool.job, pool.job_ends_at, now)
    return f"{until}{', over' * (pool.until < now)}"


def _nodes(hosts: Sequence[str]) -> str:
    """``n1, n2``; of many, the first ones and the count of the others."""
    named = ", ".join(hosts[:_NAMED])
    return named if len(hosts) <= _NAMED else f"{named} and {len(hosts) - _NAMED} others"
