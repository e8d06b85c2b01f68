"""Training continues after the death of a rank, with the results of a run without it.

The usual way under torchrun: all state is a function of the step, a snapshot is written now
and then, and a fresh process begins with it. Here the survivors need no snapshot: they have the
state. Both ways end in the same loss and the same parameters, bit by bit; on two ranks, since a
sum of two does not depend on their order.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import RankExitedError
from tests.conftest import SharedPool
from tests.support.views import run_cell

LAST_STEP = 40
DIES_AT = 17
SNAPSHOT_EVERY = 10

PARTS = f"""
import os, signal
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

def make():
    torch.manual_seed(7)
    network = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    return network, torch.optim.Adam(network.parameters(), lr=1e-2), torch.tensor(0)

def batch(step):
    source = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(16, 8, generator=source)
    return x, x.sin().sum(1, keepdim=True)

def save(network, optimizer, step):
    state = dict(network=network.state_dict(), optimizer=optimizer.state_dict(), step=int(step))
    torch.save(state, path + ".new")
    os.replace(path + ".new", path)

def load(network, optimizer, step):
    state = torch.load(path)
    network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    step.fill_(state["step"])

def train(model, optimizer, step, dies_at=None, in_backward=False):
    while step < {LAST_STEP}:
        x, y = batch(int(step))
        loss = nn.functional.mse_loss(model(x), y)
        if step == dies_at:
            if not in_backward:
                os.kill(os.getpid(), signal.SIGKILL)
            loss.register_hook(lambda grad: os.kill(os.getpid(), signal.SIGKILL))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % {SNAPSHOT_EVERY} == 0 and rank == 0:
            save(model.module, optimizer, step)
    return loss.detach()

def result():
    total = loss.clone()
    dist.all_reduce(total)
    parameters = nn.utils.parameters_to_vector(network.parameters())
    return total.item(), parameters.view(torch.int32).tolist()
"""

BEGIN = "network, optimizer, step = make()\nmodel = DDP(network)"


Result: TypeAlias = list[tuple[float, list[int]]]


@pytest.fixture(scope="module")
def shared_pool(own_temporary_folder: Path) -> Iterator[SharedPool]:
    """For `pool`: one for this file, since a pool outlives all of these deaths."""
    shared = SharedPool()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBDDP_PRELOAD", "torch._dynamo")  # each fresh rank would load it for DDP
        shared.get()
    yield shared
    shared.drop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("snapshots")


@pytest.fixture(scope="module")
def reference(shared_pool: SharedPool, folder: Path) -> Result:
    """The results of the training without a failure."""
    pool = shared_pool.get()
    prepare(pool, folder)
    run_cell(pool, f"{BEGIN}\nloss = train(model, optimizer, step)")
    found: Result = pool.pull("result()")
    assert found[0] == found[1]
    return found


@pytest.fixture
def pool(pool: Pool, folder: Path) -> Pool:
    """The pool of all tests, with the functions of the training."""
    prepare(pool, folder)
    return pool


def prepare(pool: Pool, folder: Path, ranks: int | None = None) -> None:
    code = f"path = {str(folder / 'snapshot.pt')!r}\n{PARTS}"
    run_cell(pool, code, ranks=None if ranks is None else [ranks])


def die(pool: Pool, rank: int, *, in_backward: bool = False) -> None:
    """Train from the beginning until a rank dies; the other one keeps its state."""
    code = (
        f"{BEGIN}\n"
        f"dies_at = {DIES_AT} if rank == {rank} else None\n"
        f"loss = train(model, optimizer, step, dies_at, {in_backward})"
    )
    with pytest.raises(RankExitedError) as caught:
        run_cell(pool, code)
    assert caught.value.by_rank[rank][0] == "RankExited"
    assert pool.pull("int(step)", ranks=1 - rank) == DIES_AT
    assert pool.pull("'step' in globals()", ranks=rank) is False


@pytest.mark.parametrize("rank", [0, 1])
def test_training_continues_from_a_snapshot(pool: Pool, folder: Path, reference: Result, rank: int):
    """Every rank goes back to the snapshot, as under torchrun."""
    die(pool, rank)
    prepare(pool, folder, rank)
    run_cell(
        pool,
        "network, optimizer, step = make()\n"
        "load(network, optimizer, step)\n"
        "began = int(step)\n"
        "model = DDP(network)\n"
        "loss = train(model, optimizer, step)",
    )
    assert pool.pull("began") == [DIES_AT // SNAPSHOT_EVERY * SNAPSHOT_EVERY] * 2
    assert pool.pull("result()") == reference


@pytest.mark.parametrize("in_backward", [False, True], ids=["before backward", "in backward"])
def test_training_continues_from_a_survivor(
    pool: Pool, folder: Path, reference: Result, in_backward: bool
):
    """One rank after the other dies: a different process holds the state each time."""
    for rank in (1, 0):
        die(pool, rank, in_backward=in_backward)
        prepare(pool, folder, rank)
        run_cell(pool, "network, optimizer, step = make()", ranks=[rank])
        run_cell(
            pool,
            "nbddp.sync(network, optimizer, step)\n"
            "began = int(step)\n"
            "model = DDP(network)\n"
            "loss = train(model, optimizer, step)",
        )
        assert pool.pull("began") == [DIES_AT] * 2
        assert pool.pull("result()") == reference


def test_a_wrapped_model_is_brought_up_to_date_too(pool: Pool, folder: Path, reference: Result):
    """A new DDP starts from the parameters of rank 0; the right source is named afterwards."""
    die(pool, 1)
    prepare(pool, folder, 1)
    run_cell(pool, "network, optimizer, step = make()", ranks=[1])
    run_cell(
        pool,
        "model = DDP(network)\n"
        "nbddp.sync(model, optimizer, step, src=0)\n"
        "loss = train(model, optimizer, step)",
    )
    assert pool.pull("result()") == reference
