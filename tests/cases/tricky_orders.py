"""Correct cells with unusual orders of operations that cannot deadlock."""

from tests.cases.tricky_cells import tricky

ORDERS = [
    tricky(
        "uneven messages",
        3,
        """\
for number in range(1 + 2 * rank):
    if rank:
        dist.send(torch.full((2,), float(number)), 0, tag=rank)
if rank == 0:
    for source, count in ((2, 5), (1, 3)):
        for number in range(count):
            dist.recv(x := torch.empty(2), source, tag=source)
            assert x[0] == number
""",
    ),
    tricky(
        "receive from any source",
        4,
        """\
if rank:
    time.sleep(0.3 * (world_size - rank))
    dist.send(torch.tensor([float(rank)]), 0)
else:
    found = set()
    for _ in range(world_size - 1):
        x = torch.empty(1)
        assert dist.recv(x) == x.item()
        found.add(x.item())
    assert found == {1, 2, 3}
""",
    ),
    tricky(
        "sends and receives issued before the first wait",
        4,
        """\
left, right = (rank - 1) % world_size, (rank + 1) % world_size
x = torch.empty(1000)
works = [dist.isend(torch.full((1000,), float(rank)), right), dist.irecv(x, left)]
time.sleep(0.3 * rank)
for work in works:
    work.wait()
assert x.eq(left).all()
y = torch.full((1000,), rank + 0.5)
ops = [dist.P2POp(dist.irecv, x, right), dist.P2POp(dist.isend, y, left)]
for work in dist.batch_isend_irecv(ops):
    work.wait()
assert x.eq(right + 0.5).all()
""",
        is_variant=True,
    ),
    tricky(
        "pipeline, one forward and one backward at a time",
        3,
        """\
works = []

def forward():
    x = torch.ones(2)
    if rank:
        dist.recv(x, rank - 1, tag=1)
    if rank < 2:
        works.append(dist.isend(x, rank + 1, tag=1))

def backward():
    x = torch.ones(2)
    if rank < 2:
        dist.recv(x, rank + 1, tag=2)
    if rank:
        works.append(dist.isend(x, rank - 1, tag=2))

warmup = 2 - rank
for _ in range(warmup):
    forward()
for step in range(6 - warmup):
    forward()
    time.sleep(0.05 * rank)
    backward()
for _ in range(warmup):
    backward()
for work in works:
    work.wait()
""",
    ),
    tricky(
        "parameter server",
        4,
        """\
if rank:
    for step in range(200):
        dist.send(torch.full((2,), float(rank)), 0, tag=step % 2)
    dist.barrier()
else:
    early = dist.irecv(first := torch.empty(2), tag=0)
    counts = [0] * world_size
    for step in range(200 * (world_size - 1) - 1):
        source = dist.recv(x := torch.empty(2), tag=(step + 1) % 2)
        assert x[0] == source
        counts[source] += 1
    early.wait()
    counts[int(first[0])] += 1
    assert counts == [0, 200, 200, 200]
    dist.barrier()
""",
        is_variant=True,
    ),
    tricky(
        "parallel sub-groups, each in its own order",
        4,
        """\
mine = low if rank < 2 else high
for _ in range(5 if rank < 2 else 9):
    dist.all_reduce(torch.ones(1), group=mine)
    time.sleep(0.05)
dist.all_reduce(torch.ones(1), group=everyone)
dist.all_reduce(torch.ones(1), group=mine)
""",
    ),
    tricky(
        "async operations of two groups, issued in opposite order",
        2,
        """\
groups = [low, everyone] if rank else [everyone, low]
works = []
for group in groups:
    works.append(dist.all_reduce(torch.ones(1), group=group, async_op=True))
    time.sleep(0.4)
for work in works:
    work.wait()
""",
    ),
    tricky(
        "async operations waited for in another order",
        3,
        """\
tensors = [torch.full((1000,), float(i)) for i in range(6)]
works = [dist.all_reduce(x, async_op=True) for x in tensors]
time.sleep(0.3 * rank)
for work in works[:: -1 if rank % 2 else 1]:
    work.wait()
assert [x[0].item() for x in tensors] == [3.0 * i for i in range(6)]
""",
        is_variant=True,
    ),
    tricky(
        "background thread with a group of its own",
        2,
        """\
def exchange():
    for _ in range(20):
        dist.all_reduce(torch.ones(10), group=everyone)
        time.sleep(0.02 * rank)

thread = threading.Thread(target=exchange)
thread.start()
for _ in range(20):
    dist.all_reduce(torch.ones(10))
    time.sleep(0.02 * (1 - rank))
thread.join()
""",
    ),
    tricky(
        "background thread that outlives the cell",
        2,
        """\
def later():
    time.sleep(0.6 * (1 + rank))
    dist.all_reduce(torch.ones(1), group=everyone)

thread = threading.Thread(target=later)
thread.start()
if rank:
    dist.recv(torch.empty(1), 0)
else:
    time.sleep(1)
    dist.send(torch.ones(1), 1)
""",
        "thread.join()",
        is_variant=True,
    ),
    tricky(
        "thread of a rank that has finished its cell comes to the collective",
        3,
        """\
def later():
    time.sleep(1)
    dist.all_reduce(torch.ones(1), group=everyone)

if rank == 0:
    thread = threading.Thread(target=later)
    thread.start()
else:
    dist.all_reduce(torch.ones(1), group=everyone)
""",
        "if rank == 0:\n    thread.join()",
        is_variant=True,
    ),
    tricky(
        "worker of an executor that works on when the cell has ended",
        3,
        """\
from concurrent.futures import ThreadPoolExecutor

def later():
    time.sleep(1)
    dist.all_reduce(torch.ones(1), group=everyone)

if rank == 0:
    executor = ThreadPoolExecutor(1)
    future = executor.submit(later)
else:
    dist.all_reduce(torch.ones(1), group=everyone)
""",
        "if rank == 0:\n    future.result()\n    executor.shutdown()",
        is_variant=True,
    ),
    tricky(
        "storm of small operations with random pauses",
        4,
        """\
import random
chance = random.Random(rank)
for step in range(300):
    if chance.random() < 0.02:
        time.sleep(chance.random() * 0.1)
    match step % 4:
        case 0: dist.all_reduce(torch.ones(1))
        case 1: dist.barrier(group=low if rank < 2 else high)
        case 2: dist.broadcast(torch.ones(1), step % 3)
        case 3: dist.all_gather_object([None] * world_size, "x" * chance.randrange(99))
""",
        is_variant=True,
    ),
    tricky(
        "objects of different sizes",
        3,
        """\
found = [None] * world_size
dist.all_gather_object(found, list(range(1000 * rank)))
assert [len(each) for each in found] == [0, 1000, 2000]
dist.gather_object("x" * rank, found if rank == 1 else None, dst=1)
dist.scatter_object_list(out := [None], ["a", "bb", "ccc"] if rank == 0 else None, src=0)
assert len(out[0]) == rank + 1
""",
    ),
    tricky(
        "uneven splits",
        3,
        """\
mine = torch.arange(float(rank + 1)).repeat(world_size)
out = torch.empty(6)
dist.all_to_all_single(out, mine, [1, 2, 3], [rank + 1] * 3)
assert out.tolist() == [0, 0, 1, 0, 1, 2]
""",
    ),
    tricky(
        "broadcast into another shape",
        2,
        "x = torch.ones(2, 3) if rank else torch.arange(6.0)\ndist.broadcast(x, 0)\n"
        "assert x.flatten().tolist() == [0, 1, 2, 3, 4, 5]",
        may_warn=True,
    ),
    tricky(
        "gather where the root alone gives outputs",
        2,
        "found = [torch.empty(2) for _ in range(2)] if rank == 1 else None\n"
        "dist.gather(torch.full((2,), float(rank)), found, dst=1)",
    ),
    tricky(
        "DDP buckets of different sizes, which DDP makes equal",
        2,
        """\
net = DDP(nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))), bucket_cap_mb=0.02 * (1 + rank))
for _ in range(3):
    net(torch.ones(1, 64)).sum().backward()
""",
    ),
]
