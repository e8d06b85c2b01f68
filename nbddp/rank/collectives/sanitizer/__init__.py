"""``%%ddp --sanitize``: finds errors that do not hang but make numbers wrong."""

from nbddp.rank.collectives.sanitizer.sanitizer import Sanitizer

__all__ = ["Sanitizer"]
