"""The last start or attach of the user, if it has failed: no cell starts another pool instead.

Runs in: the notebook's process.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nbddp.errors import NoPoolError


class FailedStart:
    """Knows whether the user's last start, or attach, has failed."""

    def __init__(self) -> None:
        self._line = ""  # the command, as the user has written it; empty: it has not failed

    @contextmanager
    def noted(self, line: str, has_pool: Callable[[], bool]) -> Iterator[None]:
        """Note it if the block, which starts a pool or takes one back, raises.

        Args:
            line: the command, as the user has written it.
            has_pool: whether a pool is running, to which the failure then changes nothing.
        """
        try:
            yield
        except BaseException:
            if not has_pool():
                self._line = line
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
            raise NoPoolError(
                f"no pool is running, since {self._line} failed; this cell ran nowhere, and starts "
                "no other pool in its place. Next: %ddp start with the options that you need"
                f"{attach}"
            )
