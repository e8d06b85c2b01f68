"""Training on a GPU: DDP and FSDP2, also after an interrupted step."""

from collections.abc import Callable

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import CellError
from tests.gpu.places import IS_DRY, PLACES, SHARED, Place
from tests.support.views import run_cell

places = pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
_LIMIT_S = 120.0

_PARTS = """
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8)).to(device)

def ddp():
    ids = [device.index] if device.type == "cuda" else None
    return DDP(net(), device_ids=ids, bucket_cap_mb=0.001)

def fsdp2():
    mesh = init_device_mesh(device.type, (world_size,))
    model = net()
    for layer in (model[0], model[2]): fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)

def train(make, leaves=-1):
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    return model, optimizer, steps(model, optimizer, 0, 6, leaves)

def steps(model, optimizer, first, last, leaves=-1):
    losses = []
    for number in range(first, last):
        generator = torch.Generator().manual_seed(100 * number + rank)
        x = torch.randn(16, 32, generator=generator).to(device)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if number == leaves and rank == world_size - 1: raise ValueError("left")
        loss.backward(); optimizer.step()
        losses.append(loss.item())
    return losses
"""


def _check(pool: Pool, make: str, seen: Callable[[str, object], None]) -> None:
    """The interrupted step has no effect on the next ones."""
    run_cell(pool, f"{_PARTS}\nmodel, optimizer, expected = train({make})", timeout=_LIMIT_S)
    losses = pool.pull("expected")
    seen("losses of rank 0", ", ".join(f"{loss:.4f}" for loss in losses[0]))
    assert all(each[-1] < each[0] for each in losses)
    code = f"""
model = {make}()
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
found = steps(model, optimizer, 0, 3)
"""
    run_cell(pool, code, timeout=_LIMIT_S)
    with pytest.raises(CellError, match="ValueError: left"):
        run_cell(pool, "steps(model, optimizer, 3, 4, leaves=3)", timeout=_LIMIT_S)
    run_cell(pool, "found += steps(model, optimizer, 3, 6)", timeout=_LIMIT_S)
    for found, expected in zip(pool.pull("found"), losses, strict=True):
        assert found == pytest.approx(expected, rel=1e-4)


@places
def test_ddp(pool: Pool, place: Place, seen: Callable[[str, object], None]):
    _check(pool, "ddp", seen)


@places
def test_fsdp2(pool: Pool, place: Place, seen: Callable[[str, object], None]):
    if place is SHARED and not IS_DRY:
        pytest.skip("Gloo has not all that FSDP2 asks of it for tensors on a GPU")
    _check(pool, "fsdp2", seen)
