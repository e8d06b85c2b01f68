"""Places of a trial: the ranks that share a GPU, and their backend."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from nbddp.controller.pool.pool import Pool
from tests.conftest import make_pool
from tests.support.views import run_cell

#: Set to run all trials on CPU with Gloo: that shows whether the trials themselves are sound.
DRY_ENV = "NBDDP_GPU_DRY"
IS_DRY = os.environ.get(DRY_ENV, "") not in ("", "0")
ROOT = Path(__file__).resolve().parents[2]

#: One GPU seen as that of two machines: no shared memory, no direct copies, sockets on loopback.
_TWO_HOSTS = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
}
#: Works on any device; each rank must get the same sum.
HEALTH_CELL = """\
_ones = torch.ones(1, device=device)
dist.all_reduce(_ones)
assert _ones.item() == world_size, _ones
"""
#: For a pool to start, and for the first communicator of NCCL.
_LIMIT_S = 120.0


@dataclass(frozen=True)
class Place:
    """How a pool is started for a trial."""

    name: str
    ranks: int
    backend: str
    gpus: int = 1  #: that there must be
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    preload: str = ""
    is_in_dry_run: bool = True

    def missing(self) -> str:
        """The reason why no trial can run here; empty if one can."""
        if IS_DRY:
            return "" if self.is_in_dry_run else "a dry run: on CPU this is like the others"
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count < self.gpus:
            return f"needs {self.gpus} CUDA device(s), and torch {torch.__version__} sees {count}"
        if self.backend == "nccl" and not torch.distributed.is_nccl_available():
            return f"torch {torch.__version__} has no NCCL"
        return ""

    def start(self, **more: Any) -> Pool:
        """A pool of its own. The caller stops it."""
        given = {"device": "cuda", "backend": self.backend, **self.options, **more}
        if IS_DRY:
            given |= {"device": "cpu", "backend": "gloo", "devices": ()}
        with pytest.MonkeyPatch.context() as patch:
            # The fork server finds the modules that are to be preloaded, wherever nbddp is.
            patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *_python_path()]))
            if self.preload:
                patch.setenv("NBDDP_PRELOAD", self.preload)
            return make_pool(self.ranks, **given)


def _python_path() -> list[str]:
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]


SHARED = Place("gloo, two ranks share a GPU", 2, "gloo", options={"devices": [0]})
ALONE = Place("nccl, one rank", 1, "nccl")
FORCED = Place(
    "nccl, two ranks forced on one GPU",
    2,
    "nccl",
    options={"devices": [0], "env": _TWO_HOSTS},
    preload="tests.gpu.own_host",
    is_in_dry_run=False,
)
#: NCCL returns from a wait when the stream has been told to wait; here when all is over.
BLOCKING = Place(
    "nccl, forced on one GPU, TORCH_NCCL_BLOCKING_WAIT=1",
    2,
    "nccl",
    options={"devices": [0], "env": {**_TWO_HOSTS, "TORCH_NCCL_BLOCKING_WAIT": "1"}},
    preload="tests.gpu.own_host",
    is_in_dry_run=False,
)
EACH = Place("nccl, two ranks with a GPU each", 2, "nccl", gpus=2, is_in_dry_run=False)
PLACES = (SHARED, ALONE, FORCED, EACH)
#: Places where ranks can wait for each other.
TOGETHER = (SHARED, FORCED, EACH)


class Pools:
    """One pool for each place, kept from trial to trial until one has broken it."""

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}
        self._refused: dict[str, str] = {}  #: the reason why a place is not available

    def get(self, place: Place) -> Pool:
        """The pool of a place; skips the trial where it cannot be had."""
        if place.name in self._refused:
            pytest.skip(self._refused[place.name])
        if place.name not in self._pools:
            self._pools[place.name] = pool = place.start()
            self._try(place, pool)
        return self._pools[place.name]

    def _try(self, place: Place, pool: Pool) -> None:
        """A refusal of NCCL to run several ranks on one GPU is no failure of nbddp."""
        view = run_cell(pool, HEALTH_CELL, timeout=_LIMIT_S, check=False)
        if view.error is None:
            return
        self.drop(place)
        if place not in (FORCED, BLOCKING):
            raise view.error
        reason = f"NCCL takes no two ranks on one GPU here: {str(view.error).splitlines()[-1]}"
        self._refused[place.name] = reason
        pytest.skip(reason)

    def check(self, place: Place) -> None:
        """The pool goes on; else it is dropped, and the trial has failed."""
        pool = self._pools.get(place.name)
        if pool is None:
            return
        try:
            run_cell(pool, HEALTH_CELL, timeout=_LIMIT_S)
        except BaseException:
            self.drop(place)
            raise

    def drop(self, place: Place) -> None:
        """Stop the pool of a place; the next trial gets another."""
        pool = self._pools.pop(place.name, None)
        if pool is not None:
            pool.stop()

    def stop(self) -> None:
        """Stop all."""
        for pool in self._pools.values():
            pool.stop()
        self._pools.clear()
