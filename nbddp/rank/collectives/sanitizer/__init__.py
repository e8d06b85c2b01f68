"""``%%ddp --sanitize``: finds errors that hang nothing and make numbers wrong."""

from nbddp.rank.collectives.sanitizer.sanitizer import Sanitizer

__all__ = ["Sanitizer"]
