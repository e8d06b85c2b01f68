"""Correct cells with operations that torch offers for ranks that do different things."""

from tests.cases.tricky_cells import tricky

USES = [
    tricky(
        "thread that threading does not know",
        2,
        """\
import _thread
done = _thread.allocate_lock()
done.acquire()

def late():
    time.sleep(1)
    dist.all_reduce(torch.ones(1))
    done.release()

if rank == 0:
    _thread.start_new_thread(late, ())
else:
    dist.all_reduce(torch.ones(1))
""",
    ),
    tricky(
        "callback of a future that goes on",
        2,
        """\
def later(future):
    time.sleep(1)
    dist.all_reduce(torch.ones(1))

work = dist.all_reduce(torch.ones(1), async_op=True)
if rank == 0:
    kept_future = work.get_future().then(later)
else:
    work.wait()
    dist.all_reduce(torch.ones(1))
""",
        is_variant=True,
    ),
    tricky(
        "join with uneven inputs",
        3,
        """\
from torch.distributed.algorithms.join import Join
net = DDP(nn.Linear(4, 1))
with Join([net]):
    for step in range(2 + 2 * rank):
        net(torch.ones(1, 4)).sum().backward()
        time.sleep(0.2)
""",
        is_variant=True,
    ),
    tricky(
        "no_sync for some steps",
        2,
        """\
for step in range(6):
    with model.no_sync():
        for _ in range(1 + rank * step):
            model(torch.ones(1, 4)).sum().backward()
    model(torch.ones(1, 4)).sum().backward()
""",
    ),
    tricky(
        "backward of some ranks without DDP's help",
        2,
        """\
for step in range(4):
    if rank == 0 and step % 2:
        model.module(torch.ones(1, 4)).sum().backward()
    model(torch.ones(1, 4)).sum().backward()
""",
    ),
    tricky(
        "errors that all ranks catch, in step",
        3,
        """\
for step in range(5):
    try:
        dist.all_reduce(torch.ones(1))
        if step % 2:
            raise ValueError("bad batch")
    except ValueError:
        dist.all_reduce(torch.ones(1))
""",
    ),
    tricky(
        "error that one rank catches before it is late",
        2,
        """\
for step in range(3):
    try:
        if rank == 1:
            raise OSError("no such file")
    except OSError:
        time.sleep(0.3)
    dist.barrier()
""",
        is_variant=True,
    ),
    tricky(
        "wrong argument that one rank corrects",
        2,
        """\
x = torch.ones(2)
try:
    dist.all_reduce("x" if rank else x)
except TypeError:
    dist.all_reduce(x)
assert x[0] == 2
""",
    ),
    tricky(
        "what one rank says, and another one leaves to torch",
        2,
        """\
x, y = torch.arange(2.0) + 2 * rank, torch.zeros(2)
dist.all_to_all_single(y, x, *([[1, 1], [1, 1]] if rank else []))
assert y.tolist() == [rank, rank + 2.0]
if rank:
    dist.all_reduce(x)
else:
    dist.group.WORLD.allreduce([x]).wait()
assert x.tolist() == [2.0, 4.0]
""",
    ),
    tricky(
        "attempts, as an elastic agent makes them",
        3,
        """\
for attempt in range(3):
    group = dist.new_group()
    try:
        dist.barrier(group=group)
        if attempt < 2:
            raise RuntimeError("worker failed")
        break
    except RuntimeError:
        time.sleep(0.1 * rank)
    finally:
        dist.destroy_process_group(group)
assert attempt == 2
""",
    ),
    tricky(
        "key that is set later",
        3,
        """\
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    time.sleep(1.5)
    store.set("late", "now")
elif rank == 1:
    store.wait(["late"])
assert store.get("late") == b"now"
dist.barrier()
store.delete_key("late")
""",
    ),
    tricky(
        "key that is set by a rank which waits for another one",
        3,
        """\
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    dist.recv(torch.empty(1), 2)
    store.set("chained", "x")
elif rank == 1:
    store.get("chained")
else:
    time.sleep(1)
    dist.send(torch.ones(1), 0)
dist.barrier()
store.delete_key("chained")
""",
        is_variant=True,
    ),
    tricky(
        "store.wait with a timeout that is caught",
        2,
        """\
store = dist.distributed_c10d._get_default_store()
try:
    store.wait(["nobody sets this"], timedelta(seconds=1))
except dist.DistStoreError:
    pass
else:
    raise AssertionError("it must time out")
dist.barrier()
""",
    ),
    tricky(
        "monitored_barrier with a short timeout that all catch",
        3,
        """\
caught = False
try:
    if rank == 1:
        time.sleep(2)
    dist.monitored_barrier(timeout=timedelta(seconds=1))
except RuntimeError as error:
    caught = True
    if rank == 0:
        assert "Rank 1 failed" in str(error), error
assert caught
""",
        is_variant=True,
    ),
    tricky(
        "timeout of a group, used to look whether a rank is there",
        2,
        """\
probe = dist.new_group(timeout=timedelta(seconds=1))
if rank == 0:
    time.sleep(2)
else:
    try:
        dist.all_reduce(torch.ones(1), group=probe)
    except RuntimeError as error:
        assert "imed out" in str(error), error
    else:
        raise AssertionError("it must time out")
""",
        "dist.destroy_process_group(probe)",
        is_variant=True,
    ),
    tricky(
        "new_group of members only",
        4,
        """\
if rank in (1, 2):
    time.sleep(0.8 * (rank - 1))
    pair = dist.new_group([1, 2], use_local_synchronization=True)
    dist.all_reduce(torch.ones(1), group=pair)
    dist.destroy_process_group(pair)
dist.barrier()
""",
        is_variant=True,
    ),
    tricky(
        "rank by rank",
        2,
        ("0", "step = 1\nwork = dist.isend(torch.full((1,), 5.0), 1)"),
        ("1", "time.sleep(0.6)\nx = torch.empty(1)\ndist.recv(x, 0)\nassert x.item() == 5"),
        ("0", "work.wait()"),
        is_variant=True,
    ),
    tricky(
        "collective issued rank by rank",
        2,
        ("0", "work = dist.all_reduce(x := torch.ones(1), async_op=True)"),
        ("1", "work = dist.all_reduce(x := torch.ones(1), async_op=True)"),
        "work.wait()\nassert x.item() == 2",
    ),
    tricky(
        "async operation waited for in the next cell",
        3,
        "x = torch.ones(4)\nwork = dist.all_reduce(x, async_op=True)",
        "time.sleep(0.4 * rank)\nwork.wait()\nassert x[0] == 3",
    ),
    tricky(
        "cells on some ranks of a sub-group",
        4,
        ("2-3", "time.sleep(0.3 * (rank - 2))\ndist.all_reduce(torch.ones(1), group=high)"),
        ("0,1", "dist.broadcast(torch.ones(1), 1, group=low)"),
        "dist.barrier()",
    ),
    tricky(
        "strides that all ranks have, or that send nothing in another order",
        2,
        """\
turned = (torch.arange(6.0) + rank).reshape(3, 2).t()
dist.all_reduce(turned)
assert turned.tolist() == [[1.0, 5.0, 9.0], [3.0, 7.0, 11.0]]
line = torch.ones(4, 1) if rank else torch.ones(1, 4).t()
dist.broadcast(line, 0)
channels = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
dist.all_reduce(channels)
assert channels.sum() == 2 * channels.numel()
parts = [torch.empty(2, 3), torch.empty(3, 2).t()]
dist.all_gather(parts, turned if rank else turned.contiguous())
assert torch.equal(parts[0], parts[1])
""",
    ),
    tricky(
        "checkpoint of all ranks",
        2,
        """\
import tempfile
import torch.distributed.checkpoint as checkpoint
folder = [tempfile.mkdtemp()]
dist.broadcast_object_list(folder, src=0)
state = {"model": model.state_dict()}
checkpoint.save(state, checkpoint_id=folder[0])
time.sleep(0.3 * rank)
checkpoint.load(state, checkpoint_id=folder[0])
""",
        is_variant=True,
    ),
    tricky(
        "processes of one's own",
        2,
        """\
import multiprocessing
with multiprocessing.get_context("fork").Pool(2) as workers:
    assert workers.map(abs, range(-50, 0))[-1] == 1
    dist.barrier()
    workers.map(time.sleep, [0.5 * rank] * 2)
dist.barrier()
""",
        is_variant=True,
    ),
]
