"""The Debug Adapter Protocol on a rank, by debugpy.

Runs in: the rank process.
"""

from nbddp.rank.link import Link
from nbddp.rank.shell import RankShell
from nbddp.wire.messages import Debug


class Debugging:
    """Speaks with debugpy in this process."""

    def __init__(self, shell: RankShell, link: Link) -> None:
        self._shell = shell
        self._link = link

    def handle(self, request: Debug) -> None:
        """A request of the front end. Called by the I/O thread."""
