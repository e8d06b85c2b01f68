"""Checks of single options of a pool: what is wrong, and what is legal.

Runs in: the notebook's process.
"""

import importlib.util
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nbddp.controller.options.launcher_checks import check_kept
from nbddp.durations import parse_duration, write_duration
from nbddp.errors import BadOptionError, NoTorchError
from nbddp.system import process_tree

MAX_PORT = 65535
_MAX_THREADS = 4096
#: Of a pool that the user lets go without saying for how long.
DEFAULT_KEEP_S = 2 * 3600.0
_LONGEST_KEEP_S = 30 * 86400.0
_THREADS_ENV = "OMP_NUM_THREADS"
_OWN_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")


def check_torch() -> None:
    """Check that torch is installed, without importing it.

    Raises:
        NoTorchError: it is not.
    """
    try:
        is_installed = importlib.util.find_spec("torch") is not None
    except (ImportError, ValueError):
        is_installed = False
    if not is_installed:
        raise NoTorchError(
            "torch is not installed in the environment of this notebook, and the ranks run there. "
            "Next: pip install torch, then %ddp start"
        )


def check_text(what: str, value: object) -> None:
    """Raise unless a value is text.

    Args:
        what: the argument, as the subject of a sentence.
        value: what the user gave.

    Raises:
        BadOptionError: it is not text.
    """
    if not isinstance(value, str):
        raise BadOptionError(f"{what} is of type {type(value).__name__}; legal: str")


def check_seconds(name: str, value: Any) -> None:
    """Check that ``value`` is a positive, finite number of seconds, or None.

    Raises:
        BadOptionError: it is not.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadOptionError(f"{name} {value!r} is not a positive number of seconds")
    if not 0 < value < math.inf:
        raise BadOptionError(f"{name} {value:g} is not a positive number of seconds")


def checked_keep(keep: Any, *, launcher: str, command: str = "--keep") -> float:
    """Return the seconds for which a pool outlives its notebook; 0: it does not.

    Args:
        keep: seconds, or text such as ``4h``; None or 0: it does not.
        launcher: starts the agents.
        command: names the option.

    Raises:
        BadOptionError: it is no duration, is too long, or such a pool cannot be kept.
    """
    seconds = parse_duration(keep) if isinstance(keep, str) else keep
    if keep is None or (seconds == 0 and not isinstance(keep, str)):
        return 0.0
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise BadOptionError(
            f"{command} {keep!r} is not a duration; legal: 4h, 30min, 2d, or a number of seconds"
        )
    if seconds > _LONGEST_KEEP_S:
        raise BadOptionError(
            f"{command} {keep} is too long; legal: up to {write_duration(_LONGEST_KEEP_S)}"
        )
    check_kept(launcher, command=command)
    if not process_tree.IS_LINUX:
        raise BadOptionError(f"{command} needs Linux, where a process can watch another one")
    return float(seconds)


def checked_folder(cwd: Any) -> str:
    """Return the absolute path of a folder; that of the current one for an empty path.

    Raises:
        BadOptionError: it is no path, or there is no such folder.
    """
    if not isinstance(cwd, str | os.PathLike):
        raise BadOptionError(f"cwd is {cwd!r}; legal: a path")
    folder = _current_folder() if not cwd else Path(cwd).expanduser()
    if not folder.is_dir():
        raise BadOptionError(
            f"--cwd {str(cwd)!r} is not a folder that exists on this machine. Next: name another, "
            "or leave --cwd out: the ranks then begin in the current folder"
        )
    return str(folder.resolve())


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise BadOptionError(
            "the folder in which this process works was deleted. Next: %cd to another one"
        ) from None


def checked_threads(threads: Any, env: Mapping[str, str]) -> int:
    """Return the number of threads of a rank.

    The default is that of torchrun: ``OMP_NUM_THREADS`` if the user has set it, and one otherwise.

    Raises:
        BadOptionError: the number is not legal, or ``env`` has another one.
    """
    if threads is None:
        return _first_number(env.get(_THREADS_ENV, os.environ.get(_THREADS_ENV, ""))) or 1
    check_number("threads", threads, _MAX_THREADS)
    if _THREADS_ENV in env and _first_number(env[_THREADS_ENV]) != threads:
        raise BadOptionError(
            f"--threads {threads} and --env {_THREADS_ENV}={env[_THREADS_ENV]} disagree. "
            "Next: leave out one of the two"
        )
    return int(threads)


def _first_number(text: str) -> int:
    """Read ``4``, or the first of ``4,2`` (for nested regions); 0: it is not a legal number."""
    first = text.partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) <= _MAX_THREADS else 0


def check_number(name: str, value: Any, high: int, *, low: int = 1) -> None:
    """Check that ``value`` is a whole number from ``low`` to ``high``.

    Raises:
        BadOptionError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadOptionError(f"{name} is {value!r}; legal: a whole number from {low} to {high}")


def checked_variables(env: Any) -> dict[str, str]:
    """Return the environment variables for the ranks; None counts as no variables.

    Raises:
        BadOptionError: a name or value is not legal, or nbddp sets the variable itself.
    """
    if env is not None and not isinstance(env, Mapping):
        raise BadOptionError(f"env is {env!r}; legal: a mapping of names to text")
    for name, value in (env or {}).items():
        _check_variable(name, value)
    return dict(env or {})


def _check_variable(name: Any, value: Any) -> None:
    if not isinstance(name, str) or not name.isidentifier():
        raise BadOptionError(f"--env {name!r} is not a name that a variable can have")
    if not isinstance(value, str) or "\0" in value:
        raise BadOptionError(f"--env {name} is {value!r}; legal: text")
    if name in _OWN_VARIABLES:
        raise BadOptionError(f"--env {name}: nbddp sets {name} itself, for each rank")
    if name == _THREADS_ENV and not _first_number(value):
        raise BadOptionError(
            f"--env {_THREADS_ENV}={value} is not a number of threads; legal: 1 to {_MAX_THREADS}"
        )
    if name == "MASTER_PORT" and not (value.isdigit() and int(value) <= MAX_PORT):
        raise BadOptionError(f"--env MASTER_PORT={value} is not a port; legal: 0 to {MAX_PORT}")


def check_switch(name: str, value: Any) -> None:
    """Check that ``value`` is True or False.

    Raises:
        BadOptionError: it is not.
    """
    if not isinstance(value, bool):
        raise BadOptionError(f"{name} is {value!r}; legal: True or False")


def check_backend(backend: Any, device: str) -> None:
    """Check that ``backend`` is a name, and one that goes with ``device``.

    Raises:
        BadOptionError: it is not.
    """
    is_name = isinstance(backend, str) and all(c.isalnum() or c in "_:," for c in backend)
    if not is_name or not backend:
        raise BadOptionError(
            f"--backend {backend!r} is not the name of a backend; "
            "legal: auto, gloo, nccl, or another that torch.distributed knows"
        )
    backends = [part.rpartition(":")[2] for part in backend.lower().split(",")]
    if "nccl" in backends and device == "cpu":
        raise BadOptionError(
            f"--backend {backend} needs GPUs; with --device cpu use --backend gloo or auto"
        )


def check_devices(devices: Any, device: str) -> None:
    """Check that ``devices`` are numbers of CUDA devices, and that ``device`` allows them.

    Raises:
        BadOptionError: they are not.
    """
    if isinstance(devices, str) or not isinstance(devices, Sequence):
        raise BadOptionError(f"devices is {devices!r}; legal: a list of numbers, such as [0, 1]")
    if devices and device == "cpu":
        raise BadOptionError(
            f"--devices {','.join(map(str, devices))} names CUDA devices, and --device cpu "
            "uses none. Next: leave out one of the two"
        )
    if not all(isinstance(number, int) and number >= 0 for number in devices):
        raise BadOptionError(
            f"--devices {','.join(map(str, devices))}: legal: numbers of CUDA devices, such as 0,1"
        )


def check_choice(name: str, value: Any, legal: Sequence[str]) -> None:
    """Check that ``value`` is one of ``legal``.

    Raises:
        BadOptionError: it is not.
    """
    if value not in legal:
        raise BadOptionError(f"--{name} {value!r} is unknown; legal: {', '.join(legal)}")
