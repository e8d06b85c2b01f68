"""What a user may say about a pool, checked.

Runs in: the notebook's process.
"""

import importlib.util
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import get_args

from nbddp.controller.state.config import Config, OnDeadlock, OnDeath
from nbddp.errors import BadOptionError, NoTorchError
from nbddp.wire.message_types import Device, InitMethod, OnMismatch

#: More ranks than this on one machine are a slip of the finger.
MAX_RANKS = 1024
_MAX_PORT = 65535
_MAX_THREADS = 4096
_THREADS_ENV = "OMP_NUM_THREADS"
_OWN_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
#: What may be configured while the pool lives, the default first.
LEGAL_CONFIG: dict[str, tuple[str, ...]] = {
    "on_deadlock": get_args(OnDeadlock),
    "on_mismatch": get_args(OnMismatch),
    "on_death": get_args(OnDeath),
}


@dataclass(frozen=True)
class PoolOptions:
    """Options of ``%ddp start`` and `nbddp.start`."""

    nproc_per_node: int = 2
    nnodes: int = 1
    backend: str = "auto"
    device: Device = "auto"
    devices: tuple[int, ...] = ()
    init: InitMethod = "env"
    threads: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    timeout_s: float = 0.0
    plain: bool = False

    @classmethod
    def checked(
        cls,
        nproc_per_node: int = 2,
        *,
        nnodes: int = 1,
        backend: str = "auto",
        device: str = "auto",
        devices: Sequence[int] = (),
        init: str = "env",
        threads: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] = "",
        timeout: float | None = None,
        plain: bool = False,
    ) -> "PoolOptions":
        """Check everything that can be checked before a process is started.

        Raises:
            BadOptionError: an option is not legal; the message says what is.
            NoTorchError: torch is not installed.
        """
        _check_number("nproc_per_node (-n)", nproc_per_node, 1, MAX_RANKS)
        _check_number("nnodes", nnodes, 1, MAX_RANKS)
        _check_number("nproc_per_node x nnodes", nproc_per_node * nnodes, 1, MAX_RANKS)
        _check_choice("device", device, get_args(Device))
        _check_choice("init", init, get_args(InitMethod))
        if not backend or not all(c.isalnum() or c in "_:," for c in backend):
            raise BadOptionError(
                f"--backend {backend!r} is not the name of a backend; "
                "legal: auto, gloo, nccl, or another that torch.distributed knows"
            )
        backends = [part.rpartition(":")[2] for part in backend.lower().split(",")]
        if "nccl" in backends and device == "cpu":
            raise BadOptionError(
                f"--backend {backend} needs GPUs; with --device cpu use --backend gloo or auto"
            )
        if devices and device == "cpu":
            raise BadOptionError(
                f"--devices {','.join(map(str, devices))} names CUDA devices, and --device cpu "
                "uses none; leave out one of the two"
            )
        check_seconds("--timeout", timeout)
        if any(number < 0 for number in devices):
            raise BadOptionError(
                f"--devices {','.join(map(str, devices))}: "
                "legal: numbers of CUDA devices, such as 0,1"
            )
        if not isinstance(plain, bool):
            raise BadOptionError(f"plain is {plain!r}; legal: True or False")
        for name, value in (env or {}).items():
            _check_variable(name, value)
        threads = _checked_threads(threads, env or {})
        folder = _current_folder() if not cwd else Path(cwd).expanduser()
        if not folder.is_dir():
            raise BadOptionError(f"--cwd {str(cwd)!r} is not a folder that exists")
        check_torch()
        return cls(
            nproc_per_node=nproc_per_node,
            nnodes=nnodes,
            backend=backend.lower(),
            device=device,  # type: ignore[arg-type]  # checked above
            devices=tuple(devices),
            init=init,  # type: ignore[arg-type]  # checked above
            threads=threads,
            env=dict(env or {}),
            cwd=str(folder.resolve()),
            timeout_s=timeout or 0.0,
            plain=plain,
        )

    @property
    def world_size(self) -> int:
        """Number of ranks in all."""
        return self.nproc_per_node * self.nnodes

    def differences(self, other: "PoolOptions") -> list[str]:
        """Names of the options in which ``other`` differs."""
        return [f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name)]

    def describe(self) -> str:
        """As on the command line, without what is the default."""
        parts = [f"-n {self.nproc_per_node}"]
        for name in ("nnodes", "backend", "device", "init", "threads"):
            default = type(self).__dataclass_fields__[name].default
            if getattr(self, name) != default:
                parts.append(f"--{name} {getattr(self, name)}")
        if self.plain:
            parts.append("--plain")
        if self.devices:
            parts.append(f"--devices {','.join(map(str, self.devices))}")
        return " ".join(parts)


def changed(config: Config, changes: Mapping[str, str]) -> Config:
    """``config`` with changes. Raises `BadOptionError` if a name or value is not legal."""
    for name, value in changes.items():
        if name not in LEGAL_CONFIG:
            raise BadOptionError(f"{name!r} cannot be configured; legal: {', '.join(LEGAL_CONFIG)}")
        if value not in LEGAL_CONFIG[name]:
            legal = ", ".join(LEGAL_CONFIG[name])
            raise BadOptionError(f"{name}={value!r} is unknown; legal: {legal}")
    return replace(config, **changes)  # type: ignore[arg-type]  # checked above


def check_torch() -> None:
    """Raises `NoTorchError` if torch is not installed; does not import it."""
    try:
        found = importlib.util.find_spec("torch") is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise NoTorchError(
            "torch is not installed in the environment of this notebook, and the ranks run there. "
            "Next: pip install torch, then %ddp start"
        )


def check_seconds(name: str, value: float | None) -> None:
    """Raises `BadOptionError` if ``value`` is neither None nor a time that can be waited for."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadOptionError(f"{name} {value!r} is not a positive number of seconds")
    if not 0 < value < math.inf:
        raise BadOptionError(f"{name} {value:g} is not a positive number of seconds")


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise BadOptionError(
            "the folder in which this process works was deleted. Next: %cd to another one"
        ) from None


def _checked_threads(threads: int | None, env: Mapping[str, str]) -> int:
    """As with torchrun: what the user has set for all programs, or else one for each rank."""
    if threads is None:
        return _first_number(env.get(_THREADS_ENV, os.environ.get(_THREADS_ENV, ""))) or 1
    _check_number("threads", threads, 1, _MAX_THREADS)
    if _THREADS_ENV in env and _first_number(env[_THREADS_ENV]) != threads:
        raise BadOptionError(
            f"--threads {threads} and --env {_THREADS_ENV}={env[_THREADS_ENV]} disagree; "
            "leave out one of the two"
        )
    return threads


def _first_number(text: str) -> int:
    """Of ``4`` or ``4,2``, which is for nested regions; 0: it is none that can be used."""
    first = text.partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) <= _MAX_THREADS else 0


def _check_number(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadOptionError(f"{name} is {value!r}; legal: a whole number from {low} to {high}")


def _check_variable(name: str, value: str) -> None:
    if not name.isidentifier():
        raise BadOptionError(f"--env {name!r} is not a name that a variable can have")
    if not isinstance(value, str) or "\0" in value:
        raise BadOptionError(f"--env {name} is {value!r}; legal: text")
    if name in _OWN_VARIABLES:
        raise BadOptionError(f"--env {name}: nbddp sets {name} itself, for each rank")
    if name == _THREADS_ENV and not _first_number(value):
        raise BadOptionError(
            f"--env {_THREADS_ENV}={value} is not a number of threads; legal: 1 to {_MAX_THREADS}"
        )
    if name == "MASTER_PORT" and not (value.isdigit() and int(value) <= _MAX_PORT):
        raise BadOptionError(f"--env MASTER_PORT={value} is not a port; legal: 0 to {_MAX_PORT}")


def _check_choice(name: str, value: str, legal: Sequence[str]) -> None:
    if value not in legal:
        raise BadOptionError(f"--{name} {value!r} is unknown; legal: {', '.join(legal)}")
