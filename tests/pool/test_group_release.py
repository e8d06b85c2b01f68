"""Groups and handles that are released on threads of the backend, in cycles, or not at all."""

import pytest

from nbddp.controller.pool.pool import Pool
from tests.support.views import run_cell

_PRELUDE = """
import gc, threading, time
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

def late(number):
    '''Rank 1 comes when rank 0 has let go of all that it had.'''
    dist.distributed_c10d._get_default_store().wait([f"late {number}"])

def come(number):
    dist.distributed_c10d._get_default_store().set(f"late {number}", "1")

def release_by_callback(number):
    group = dist.new_group()
    t = torch.ones(3)
    if rank == 1:
        late(number)
        dist.all_reduce(t, group=group)
        return
    future = dist.all_reduce(t, group=group, async_op=True).get_future()
    dist.destroy_process_group(group)
    timer = threading.Timer(0.2, come, [number])  # as a stock group, it waits for what is open
    timer.start()
    del group
    future.wait()
    timer.join()

def release_by_collector(number):
    group = dist.new_group()
    t = torch.ones(3)
    if rank == 1:
        late(number)
        dist.all_reduce(t, group=group)
        return
    cycle = [group]
    cycle.append(cycle)
    work = dist.all_reduce(t, group=group, async_op=True)
    ended = work.get_future().then(lambda future: gc.collect())
    dist.destroy_process_group(group)
    del cycle, group, work
    come(number)
    assert ended.wait() > 0

class Square(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor(1.0))

    def forward(self):
        return self.p.pow(2)

def create_graph():
    model = DDP(Square())
    for _ in range(3):
        model().backward(create_graph=True)

def hook_and_no_sync():
    def hook(group, bucket):
        future = group.allreduce([bucket.buffer() / 2]).get_future()
        return future.then(lambda future: future.value()[0])

    model = DDP(nn.Linear(4, 4))
    model.register_comm_hook(dist.group.WORLD, hook)
    for _ in range(3):
        with model.no_sync():
            model(torch.ones(2, 4)).sum().backward()
        model(torch.ones(2, 4)).sum().backward()

def sparse_gradients():
    bag = nn.EmbeddingBag(10, 3, sparse=True)
    model = DDP(nn.Sequential(bag, nn.Linear(3, 1)), gradient_as_bucket_view=True)
    for _ in range(3):
        model(torch.tensor([[1, 2], [3, 4]])).sum().backward()

def coalesced():
    outputs = [[torch.zeros(2), torch.zeros(3)] for _ in range(2)]
    dist.all_gather_coalesced(outputs, [torch.ones(2), torch.ones(3)], async_op=True).wait()
    dist.all_reduce_coalesced([torch.ones(2), torch.ones(3)], async_op=True).wait()

def of_its_own(program, times):
    '''In default groups of its own, one after another.'''
    for number in range(times):
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        program()
"""


@pytest.fixture
def ready(pool: Pool) -> Pool:
    run_cell(pool, _PRELUDE)
    return pool


@pytest.mark.parametrize("way", ["release_by_callback", "release_by_collector"])
def test_a_group_may_end_on_a_thread_of_its_own_backend(ready: Pool, way: str):
    """That thread would join itself, and the process ended with "Resource deadlock avoided"."""
    for number in range(5):
        run_cell(ready, f"{way}('{way} {number}')", timeout=20.0)


@pytest.mark.parametrize(
    "program", ["create_graph", "hook_and_no_sync", "sparse_gradients", "coalesced"]
)
@pytest.mark.replaces_group
def test_default_groups_end_while_their_works_are_released(ready: Pool, program: str):
    run_cell(ready, f"of_its_own({program}, 15)", timeout=60.0)
