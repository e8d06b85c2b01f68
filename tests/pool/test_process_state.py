"""Forked ranks have their own state where processes of torchrun have it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import RankExitedError
from nbddp.settings import Settings
from tests.support import process_state
from tests.support.views import run_cell

State: TypeAlias = dict[str, Any]

#: State that forked ranks share nevertheless (docs/decisions/): Python fixes it when it starts.
SHARED = {
    "hash of a string",
    "order of a set of strings",
    "address of a module",
    "address in libc",
}


def states(pool: Pool) -> list[State]:
    """The state of each rank, read from JSON."""
    run_cell(pool, "import json\nfrom tests.support.process_state import look")
    return [json.loads(text) for text in pool.pull("json.dumps(look(), default=repr)")]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> list[State]:
    """The state of two processes of torchrun."""
    folder = tmp_path_factory.mktemp("stock")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--log-dir", str(folder), "--standalone", process_state.__file__, str(folder)]
    environ = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as process:
        try:
            _, errors = process.communicate(timeout=100)
        finally:
            process.terminate()  # it ends its processes, too
    assert process.returncode == 0, errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def own_names(stock: list[State]) -> set[str]:
    """The names in which processes of torchrun differ."""
    return {name for name in stock[0] if stock[0][name] != stock[1][name]}


def equal_names(ours: list[State], names: set[str]) -> set[str]:
    """The names whose values any two of the states have in common."""
    return {name for name in names if len({json.dumps(state[name]) for state in ours}) < len(ours)}


@pytest.mark.full
@pytest.mark.timeout(150)  # it runs torchrun
def test_each_rank_has_what_each_process_of_torchrun_has(
    stock: list[State], fresh_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("NBDDP_PRELOAD", "numpy.random")  # forked with its generator
    pool = fresh_pool(2)
    ours = states(pool)
    with pytest.raises(RankExitedError):
        run_cell(pool, "import os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)")
    replaced = states(pool)[1]
    pool.restart()
    ours += [replaced, *states(pool)]

    own = own_names(stock)
    assert equal_names(ours, own) == SHARED
    common = set(stock[0]) - own
    assert {name: ours[0][name] for name in common} == {name: stock[0][name] for name in common}
    for state in ours[1:]:
        assert {name: state[name] for name in common} == {name: ours[0][name] for name in common}


@pytest.mark.full
@pytest.mark.timeout(150)
def test_ranks_that_are_spawned_work_and_share_nothing(
    stock: list[State], fresh_pool: Callable[..., Pool]
):
    pool = fresh_pool(2, settings=Settings(start_method="spawn"))
    view = run_cell(pool, "t = torch.ones(1); dist.all_reduce(t); print('hi'); t.item()")
    assert view.result(1) == "2.0"
    assert view.texts() == {0: "hi\n", 1: "hi\n"}
    assert pool.pull("rank") == [0, 1]
    assert not equal_names(states(pool), own_names(stock))
