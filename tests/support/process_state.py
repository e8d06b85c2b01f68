"""The state of a process that it may share with the process from which it was forked.

A program for both sides of a comparison: a cell imports `look`, and torchrun runs this file, which
writes what it sees to ``<argument>/<rank>.json``.
"""

import ctypes
import gc
import json
import locale
import logging
import multiprocessing
import os
import random
import resource
import secrets
import signal
import ssl
import sys
import tempfile
import threading
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, RandomSampler

_LIBC = ctypes.CDLL(None)
_ITEMS: Any = [0]  # a data set: torch's types want more than torch


_FLAGS = ("debug", "dev_mode", "hash_randomization", "optimize", "utf8_mode", "isolated")


def _worker_seed(_: list[int]) -> int:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    return info.seed


def _who_logs() -> tuple[Any, ...]:
    record = logging.LogRecord("name", logging.INFO, "path", 1, "message", None, None)
    return record.process == os.getpid(), record.processName, record.threadName


def _in_thread(tell: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(tell()))
    thread.start()
    thread.join()
    return found[0]


def _with_threads(number: int) -> int:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        torch.ones(500, 500).mm(torch.ones(500, 500))
        return torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def _umask() -> int:
    before = os.umask(0o77)
    os.umask(before)
    return before


def _has_seen_warnings() -> bool:
    """Whether a warning of a user's line would be shown."""
    with warnings.catch_warnings(record=True) as seen:
        exec(compile("import warnings\nwarnings.warn('once')", "<cell>", "exec"), {})
    return len(seen) != 1


#: The order matters only for what draws from the generator of torch: the seed comes first.
_TOLD: dict[str, Callable[[], Any]] = {
    # Random numbers.
    "torch seed": torch.initial_seed,
    "torch.randn": lambda: torch.randn(2).tolist(),
    "nn.Linear": lambda: list(map(float, torch.nn.Linear(1, 2).bias)),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(64)).tolist(),
    "DataLoader": lambda: list(DataLoader(_ITEMS, num_workers=1, collate_fn=_worker_seed)),
    "RandomSampler": lambda: list(RandomSampler(range(100))),
    "torch.Generator": lambda: torch.Generator().initial_seed(),
    "torch.Generator.seed": lambda: torch.Generator().seed(),
    "random": random.random,
    "random.Random": lambda: random.Random().random(),
    "np.random": lambda: float(np.random.rand()),
    "np.random.default_rng": lambda: float(np.random.default_rng().random()),
    "os.urandom": lambda: os.urandom(8).hex(),
    "secrets": lambda: secrets.token_hex(8),
    "ssl": lambda: ssl.RAND_bytes(8).hex(),
    "uuid1": lambda: str(uuid.uuid1()),
    "uuid4": lambda: str(uuid.uuid4()),
    "tempfile": lambda: Path(tempfile.mktemp()).name,
    "authkey": lambda: bytes(multiprocessing.current_process().authkey).hex(),
    # Order of sets.
    "hash of a string": lambda: hash("a"),
    "order of a set of strings": lambda: list({*map(str, range(50))}),
    "address of a module": lambda: id(torch),
    "address in libc": lambda: ctypes.cast(_LIBC.printf, ctypes.c_void_p).value,
    # Identity.
    "pid": os.getpid,
    "is leader": lambda: (os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid()),
    "current_process": lambda: multiprocessing.current_process().name,
    "is current": lambda: multiprocessing.current_process().pid == os.getpid(),
    "parent_process": lambda: repr(multiprocessing.parent_process()),
    "daemon": lambda: multiprocessing.current_process().daemon,
    "children": lambda: len(multiprocessing.active_children()),
    "name of a child": lambda: multiprocessing.Process().name.rpartition("-")[0],
    "start method": multiprocessing.get_start_method,
    "sharing": torch.multiprocessing.get_sharing_strategy,
    "main thread": lambda: (
        threading.main_thread() is threading.current_thread(),
        threading.main_thread().name,
        threading.main_thread().native_id == os.getpid(),
    ),
    "log record": _who_logs,
    "handlers of the log": lambda: repr(logging.root.handlers),
    # Threads.
    "threads of torch": torch.get_num_threads,
    "of torch in a thread": lambda: _in_thread(torch.get_num_threads),
    "between operations": torch.get_num_interop_threads,
    "OMP_NUM_THREADS": lambda: os.environ.get("OMP_NUM_THREADS"),
    "set_num_threads": lambda: _with_threads(2),
    # State in the operating system.
    "blocked signals": lambda: sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "ignored signals": lambda: [
        number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN
    ],
    "limits": lambda: [
        resource.getrlimit(getattr(resource, name))
        for name in sorted(dir(resource))
        if name.startswith("RLIMIT_")
    ],
    "umask": _umask,
    "nice": lambda: os.nice(0),
    "processors": lambda: sorted(os.sched_getaffinity(0)),
    "OOM score": lambda: Path("/proc/self/oom_score_adj").read_text(),
    "folder": os.getcwd,
    "standard input": lambda: str(Path("/proc/self/fd/0").readlink()),
    # Settings of Python and torch.
    "locale": lambda: (
        locale.setlocale(locale.LC_ALL),
        locale.getpreferredencoding(do_setlocale=False),
    ),
    "flags": lambda: [
        getattr(sys.flags, name) for name in sorted(dir(sys.flags)) if name in _FLAGS
    ],
    "executable": lambda: sys.executable,
    "limits of Python": lambda: (
        sys.getrecursionlimit(),
        sys.getswitchinterval(),
        sys.get_int_max_str_digits(),
        gc.get_threshold(),
        gc.isenabled(),
    ),
    "encoding of output": lambda: (sys.stdout.encoding, sys.stderr.errors),
    "seen warnings": _has_seen_warnings,
    "flags of torch": lambda: (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_grad_enabled(),
        str(torch.get_default_dtype()),
        str(torch.get_default_device()),
        torch.get_float32_matmul_precision(),
        torch.backends.mkldnn.enabled,
        torch.is_anomaly_enabled(),
        torch.cuda.is_initialized(),
    ),
    "torch.distributed": lambda: (
        dist.get_backend(),
        str(dist.get_debug_level()),  # type: ignore[attr-defined]  # missing in torch's types
        dist.is_torchelastic_launched(),
    ),
    "variables": lambda: sorted(
        name
        for name in os.environ
        if name.split("_")[0] in ("RANK", "LOCAL", "WORLD", "GROUP", "ROLE", "MASTER", "OMP", "MKL")
    ),
}


def look() -> dict[str, Any]:
    """The state of this process, by name. A value that is not JSON stands as its `repr`."""
    return {name: tell() for name, tell in _TOLD.items()}


def main(folder: Path) -> None:
    """The program of one process of torchrun."""
    dist.init_process_group("gloo")
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(look(), default=repr))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
