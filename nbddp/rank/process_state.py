"""What each process of torchrun has for itself, and a rank would share with all others.

Runs in: the rank process, once, before anything else of it.

A rank is forked from a process that has loaded torch, so it begins with a copy of that process's
state: the same random numbers, the same secrets. ``random``, ``tempfile``, ``uuid`` and OpenSSL
look after themselves. What Python fixes when it starts, the hashes of strings and the addresses of
objects, is the same on all forked ranks; docs/decisions/ has the whole list.
"""

import multiprocessing
import multiprocessing.process
import os
import sys

import torch

#: As Python names the main thread's process of a program.
_MAIN_PROCESS = "MainProcess"


def renew() -> None:
    """Draw this rank's own random numbers and secrets, and be a process that nobody has made."""
    # The generator of the processor only: those of other devices are made, and seed themselves,
    # when they are first used, which is after the fork.
    torch.default_generator.seed()
    numpy_random = sys.modules.get("numpy.random")  # loaded by a module of NBDDP_PRELOAD
    if numpy_random is not None:
        numpy_random.seed()
    process = multiprocessing.current_process()
    process.name = _MAIN_PROCESS
    process.authkey = os.urandom(32)
    process._identity = ()  # it numbers the names of its children
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined]
