"""Comms of the widgets that live in this rank.

Runs in: the rank process. What the front end sends is handled on the main thread when no cell runs.
"""

from nbddp.rank.link import Link
from nbddp.rank.shell import RankShell
from nbddp.wire.messages import CommToRank


class Comms:
    """The comm manager of a rank."""

    def __init__(self, shell: RankShell, link: Link) -> None:
        self._shell = shell
        self._link = link

    def receive(self, message: CommToRank, buffers: list[bytes]) -> None:
        """The front end has sent something. Called by the I/O thread."""
