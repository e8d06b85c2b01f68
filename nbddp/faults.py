"""Faults on purpose in a program of ranks: ``with nbddp.faults.inject("rank 1: ..."):``.

Runs in: a rank, of a pool or of torchrun. docs/faults.md has the grammar.
"""

import os
import sys
from contextlib import AbstractContextManager

from nbddp.errors import NbddpError
from nbddp.wire.fault_grammar import parse_faults

__all__ = ["inject"]


def inject(faults: str) -> AbstractContextManager[None]:
    """Let faults strike on purpose while a block of code runs, on ranks of any kind.

    In a cell, it is what ``%%ddp --fault`` is for a whole cell. In a script that torchrun has
    started, or in a pool with ``--plain``, process groups are stock: faults before operations then
    strike at calls of functions of ``torch.distributed`` in Python, and not at those that
    ``DistributedDataParallel`` makes in C++. Each rank has to call it, with the same text.

    Args:
        faults: one fault, or several, separated by ``;``; docs/faults.md describes them.
            ``at line 12`` is a line of the file of the block.

    Returns:
        A context manager. It tells at its end which faults did not strike.

    Raises:
        NbddpError: this process is no rank.
        BadOptionError: a fault cannot be read; the message says what is legal.

    Example:
        >>> outcome = pool.run('''
        ... x = torch.ones(2)
        ... with nbddp.faults.inject("rank 1: flip a bit in the next all_reduce"):
        ...     dist.all_reduce(x)
        ... x
        ... ''')
        fault on purpose: rank 1 sent a flipped bit in all_reduce #...
        [0-1] Out: tensor([2.5000, 2.0000])
    """
    if not {"RANK", "WORLD_SIZE"} <= set(os.environ):
        raise NbddpError(
            "nbddp.faults.inject works on ranks. Next: call it in a %%ddp cell, or in a script "
            "that torchrun starts"
        )
    from nbddp.rank.collectives import stock_faults  # noqa: PLC0415 - it loads torch

    parsed = parse_faults(faults, int(os.environ["WORLD_SIZE"]))
    return stock_faults.faults_of_process().within(parsed, sys._getframe(1))
