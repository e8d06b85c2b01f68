"""Each operation on tensors of the device: the right values, or torch's own refusal."""

from collections.abc import Callable

import pytest

from nbddp.controller.pool.pool import Pool
from tests.gpu.places import PLACES, Place
from tests.support.views import run_cell

#: Fills ``told``: "right", "wrong", or the error, by operation.
_ALL = """
def ones(*shape):
    return torch.ones(*shape, device=device)

def all_reduce():
    x = ones(3) * (rank + 1); dist.all_reduce(x)
    return x.tolist() == [total] * 3

def broadcast():
    x = ones(3) * rank; dist.broadcast(x, world_size - 1)
    return x.tolist() == [world_size - 1.0] * 3

def reduce():
    x = ones(3) * (rank + 1); dist.reduce(x, 0)
    return rank != 0 or x.tolist() == [total] * 3

def all_gather():
    out = [ones(2) * 0 for _ in range(world_size)]; dist.all_gather(out, ones(2) * rank)
    return [each.tolist() for each in out] == [[float(r)] * 2 for r in range(world_size)]

def all_gather_into_tensor():
    out = ones(2 * world_size) * 0; dist.all_gather_into_tensor(out, ones(2) * rank)
    return out.tolist() == [float(r) for r in range(world_size) for _ in range(2)]

def reduce_scatter_tensor():
    out = ones(2) * 0; dist.reduce_scatter_tensor(out, ones(2 * world_size) * (rank + 1))
    return out.tolist() == [total] * 2

def all_to_all_single():
    x = ones(world_size) * rank; out = ones(world_size) * 0; dist.all_to_all_single(out, x)
    return out.tolist() == [float(r) for r in range(world_size)]

def scatter():
    out = ones(2) * 0
    parts = [ones(2) * r for r in range(world_size)] if rank == 0 else None
    dist.scatter(out, parts, 0)
    return out.tolist() == [float(rank)] * 2

def gather():
    out = [ones(2) * 0 for _ in range(world_size)] if rank == 0 else None
    dist.gather(ones(2) * rank, out, 0)
    return rank != 0 or [each.tolist() for each in out] == [
        [float(r)] * 2 for r in range(world_size)]

def messages():
    if world_size == 1: return True
    x = ones(2) * 0
    if rank == 0: dist.send(ones(2) * 7, 1)
    if rank == 1: dist.recv(x, 0)
    return rank != 1 or x.tolist() == [7.0] * 2

def batched_messages():
    if world_size == 1: return True
    x = ones(2) * 0
    for work in dist.batch_isend_irecv([
        dist.P2POp(dist.isend, ones(2) * rank, (rank + 1) % world_size),
        dist.P2POp(dist.irecv, x, (rank - 1) % world_size)]): work.wait()
    return x.tolist() == [float((rank - 1) % world_size)] * 2

def barrier():
    dist.barrier(); return True

def objects():
    out = [None] * world_size; dist.all_gather_object(out, {"rank": rank})
    return out == [{"rank": r} for r in range(world_size)]

def asynchronous():
    x = ones(3) * (rank + 1); work = dist.all_reduce(x, async_op=True); work.wait()
    return x.tolist() == [total] * 3

def in_a_group():
    group = dist.new_group(); x = ones(3); dist.all_reduce(x, group=group)
    right = x.tolist() == [float(world_size)] * 3
    dist.destroy_process_group(group)
    return right

total = world_size * (world_size + 1) / 2
told = {}
for each in (all_reduce, broadcast, reduce, all_gather, all_gather_into_tensor,
             reduce_scatter_tensor, all_to_all_single, scatter, gather, messages,
             batched_messages, barrier, objects, asynchronous, in_a_group):
    try:
        told[each.__name__] = "right" if each() else "wrong"
    except (RuntimeError, ValueError) as error:
        told[each.__name__] = str(error).splitlines()[0]
"""
#: Operations that Gloo has always had for tensors on GPUs.
_ALWAYS = {"all_reduce", "broadcast", "barrier", "objects", "asynchronous", "in_a_group"}


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_operations(pool: Pool, place: Place, seen: Callable[[str, object], None]):
    run_cell(pool, _ALL, timeout=120.0)
    told = pool.pull("told")
    for name in told[0]:
        answers = {each[name] for each in told}
        if answers != {"right"}:
            seen(name, ", ".join(sorted(answers)))
        assert "wrong" not in answers, name
        assert len(answers) == 1 or "right" not in answers, name
        if place.backend == "nccl" or name in _ALWAYS:
            assert answers == {"right"}, name
