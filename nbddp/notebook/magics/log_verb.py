"""``%ddp log``: shows the ends of the logs of ranks, also of those on other machines.

Runs in: the notebook's process, thread of the running cell.
"""

from IPython.core.interactiveshell import InteractiveShell

from nbddp.controller.pool import LogTail, log_tails
from nbddp.errors import BadOptionError
from nbddp.notebook import session
from nbddp.notebook.render.html import size

#: Lines of each log, without ``--last``.
DEFAULT_LAST = 40
#: A line of a log has this many bytes at most, as far as it is shown.
_LINE_BYTES = 1024
_MAX_BYTES = 4 * 1024 * 1024


def show_logs(shell: InteractiveShell, *, chosen: str | None, ranks: str | None, last: int) -> None:
    """Show the ends of logs.

    Args:
        shell: not used.
        chosen: ranks whose logs are shown; None: those of ``ranks``.
        ranks: the same; None: all ranks.
        last: number of lines of each.

    Raises:
        BadOptionError: a rank does not exist, or ranks are given twice.
        NoPoolError: no pool is running.
        PoolBrokenError: the hub has ended.
    """
    if chosen is not None and ranks is not None:
        raise BadOptionError(
            f"%ddp log: ranks are given twice, {chosen} and -r {ranks}; legal: %ddp log {chosen}"
        )
    pool = session.pool()
    max_bytes = min(last * _LINE_BYTES, _MAX_BYTES)
    for tail in log_tails(pool, pool.rank_set(ranks if chosen is None else chosen), max_bytes):
        print(log_text(tail, last))


def log_text(tail: LogTail, last: int) -> str:
    """A headline with the place of the log, and its last lines."""
    head = f"rank {tail.rank}: {tail.place or 'its log'}"
    if tail.problem:
        return f"{head} cannot be read: {tail.problem}"
    lines = tail.text.splitlines()
    shown = lines[-last:]
    if not shown:
        return f"{head} is empty"
    is_whole = len(shown) == len(lines) and len(tail.text.encode()) >= tail.size
    which = f"the last {len(shown)} lines" if len(shown) > 1 else "the last line"
    return "\n".join([f"{head} ({size(tail.size)}){'' if is_whole else f', {which}'}", *shown])
