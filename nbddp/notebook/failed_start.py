"""The last start or attach of the user, if it has failed: no cell starts another pool instead.

Also what is said where no pool is running, or another one. Runs in: the notebook's process.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from nbddp.controller.options import LINE_OPTIONS, PoolOptions
from nbddp.controller.pool import note_ended_jobs
from nbddp.errors import NoPoolError, PoolInterruptedError
from nbddp.system.kept_pools import detached_pools


class FailedStart:
    """Knows whether the user's last start, or attach, has failed."""

    def __init__(self) -> None:
        self._line = ""  # the command, as the user has written it; empty: it has not failed
        self._was_interrupted = False

    @contextmanager
    def noted(self, line: str, has_pool: Callable[[], bool]) -> Iterator[None]:
        """Note it if the block, which starts a pool or takes one back, raises.

        Args:
            line: the command, as the user has written it.
            has_pool: whether a pool is running, to which the failure then changes nothing.
        """
        try:
            yield
        except BaseException as error:
            if not has_pool():
                self._line = line
                self._was_interrupted = isinstance(error, KeyboardInterrupt | PoolInterruptedError)
            raise

    def forget(self) -> None:
        """Note that a pool is running."""
        self._line = ""

    def refuse(self) -> None:
        """Refuse to start the last pool again, or one with the defaults.

        Raises:
            NoPoolError: the user's last start, or attach, has failed.
        """
        if self._line:
            attach = ", or %ddp attach POOL (%ddp pools lists them)" * ("attach" in self._line)
            how, step = "failed", ""
            if self._was_interrupted:
                how, step = "was interrupted", f"{self._line} again, or "
            raise NoPoolError(
                f"no pool is running, since {self._line} {how}; this cell ran nowhere, and starts "
                f"no other pool in its place. Next: {step}%ddp start with the options that you "
                f"need{attach}"
            )


def no_pool_text(last: PoolOptions | None) -> str:
    """Say that no pool is running, and how to start one or take one back.

    Args:
        last: the options of the last pool; None: there was none.
    """
    note_ended_jobs()
    free = [each.pool_id for each in detached_pools()]
    back = f"; %ddp attach takes back {' or '.join(free)}" if free else ""
    if last is None:
        start = "-n 2, or nbddp.start(2)"
    else:
        without = ", without --env" if last.env else ""
        start = f"{last.start_words()} (the last options{without})"
    return f"no pool is running. Next: %ddp start {start}{back}"


def other_options_text(running: PoolOptions, asked: PoolOptions, differences: Iterable[str]) -> str:
    """Refuse a start, since a pool with other options is running.

    Args:
        running: the options of that pool.
        asked: those of the start.
        differences: the names of the options that differ.
    """
    flags = {name: LINE_OPTIONS[name].flags[0] for name in differences}
    if "env" in flags:  # values are long, or perhaps secret
        one, other = running.env, asked.env
        on_one_side = sorted(one.keys() ^ other.keys())
        changed = sorted(name for name in one.keys() & other.keys() if one[name] != other[name])
        parts = [f"--env {' '.join(on_one_side)}"] if on_one_side else []
        if changed:
            values = "another value" if len(changed) == 1 else "other values"
            parts.append(f"--env {' '.join(changed)} with {values}")
        flags["env"] = ", ".join(parts)
    has, wants = (
        each.describe() + f" --cwd {each.cwd or '(not given)'}" * ("cwd" in flags)
        for each in (running, asked)
    )
    return (
        f"a pool is running with other options: it has {has}, you asked for {wants} (different: "
        f"{', '.join(flags.values())}). Next: %ddp stop, then start again; %ddp restart gives "
        "fresh ranks with the old options"
    )
