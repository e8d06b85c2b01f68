"""State that each process of torchrun has for itself, and that forked ranks would share.

Runs in: the rank process, once, before all other code of the rank.

A rank is forked from a process that has loaded torch, so it begins with a copy of that process's
state: the same random numbers, the same secrets. ``random``, ``tempfile``, ``uuid`` and OpenSSL
renew their state by themselves. State that Python fixes when it starts, such as hashes of strings
and addresses of objects, is equal on all forked ranks; docs/decisions/ has the whole list.
"""

import multiprocessing
import multiprocessing.process
import os
import sys

import torch

#: Python's name of a program's main process.
_MAIN_PROCESS = "MainProcess"


def renew() -> None:
    """Give this rank random numbers and secrets of its own, and make it a main process."""
    # Only the generator of the CPU: generators of other devices are created and seeded at their
    # first use, which is after the fork.
    torch.default_generator.seed()
    numpy_random = sys.modules.get("numpy.random")  # loaded by a module of NBDDP_PRELOAD
    if numpy_random is not None:
        numpy_random.seed()
    process = multiprocessing.current_process()
    process.name = _MAIN_PROCESS
    process.authkey = os.urandom(32)
    process._identity = ()  # names of its children begin with these numbers
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined]
