"""Correct cells in which one rank is slow and the others wait."""

from tests.cases.tricky_cells import tricky

SLOW = [
    tricky(
        "a rank sleeps for long",
        4,
        "if rank == 1:\n    time.sleep(1.5)\ndist.barrier()",
    ),
    tricky(
        "long pure Python on one rank",
        2,
        """\
if rank == 0:
    until = time.monotonic() + 1.2
    while time.monotonic() < until:
        pass
x = torch.ones(1)
dist.all_reduce(x)
assert x.item() == 2
""",
    ),
    tricky(
        "C code that holds the GIL",
        3,
        """\
import re
if rank == 0:
    sum(range(30_000_000))
elif rank == 1:
    re.match(r"(a+)+$", "a" * 22 + "b")
dist.barrier()
""",
    ),
    tricky(
        "deep recursion",
        2,
        """\
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

if rank:
    fib(27)
dist.broadcast(torch.ones(1), 0)
""",
    ),
    tricky(
        "time.sleep in a backward hook",
        2,
        """\
x = torch.ones(1, 4, requires_grad=True)
if rank == 1:
    x.register_hook(lambda gradient: time.sleep(1.5))
for _ in range(2):
    model(x * 1).sum().backward()
    dist.barrier()
""",
        is_variant=True,
    ),
    tricky(
        "sleep between the layers of a DDP backward",
        3,
        """\
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if rank == 2:
            time.sleep(1.5)
        return gradient

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(Slow.apply(self.first(x)))

net = DDP(Net())
net(torch.ones(2, 4)).sum().backward()
""",
        is_variant=True,
    ),
    tricky(
        "heavy printing while others wait",
        2,
        "if rank == 0:\n    for n in range(20_000):\n        print('line', n)\ndist.barrier()",
    ),
    tricky(
        "subprocess",
        2,
        "import subprocess\nif rank:\n    subprocess.run(['sleep', '1.5'])\ndist.barrier()",
        is_variant=True,
    ),
    tricky(
        "slow workers of a data loader",
        2,
        """\
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        time.sleep(0.4 * rank)
        return torch.ones(4)

for batch in torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2):
    model(batch).sum().backward()
""",
    ),
    tricky(
        "long work in a thread that main joins",
        2,
        """\
def work():
    if rank == 0:
        time.sleep(1.5)
    dist.all_reduce(torch.ones(1), group=everyone)

thread = threading.Thread(target=work)
thread.start()
thread.join()
dist.barrier()
""",
        is_variant=True,
    ),
    tricky(
        "thread that main joins sets free another",
        2,
        """\
done = threading.Event()

def work():
    dist.all_reduce(torch.ones(1), group=everyone)
    done.set()

thread = threading.Thread(target=work)
thread.start()
if rank == 0:
    time.sleep(1)
    thread.join()
else:
    done.wait()
    thread.join(1000)
dist.barrier()
""",
    ),
    tricky(
        "result of an executor",
        2,
        """\
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(2) as executor:
    slow = executor.submit(time.sleep, 1.5 * rank)
    total = executor.submit(dist.all_reduce, torch.ones(1), group=everyone)
    slow.result()
    dist.barrier()
    total.result()
""",
        is_variant=True,
    ),
    tricky(
        "future of a work",
        2,
        """\
if rank:
    time.sleep(1.5)
future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
assert future.wait()[0].item() == 2
""",
        is_variant=True,
    ),
    tricky(
        "await while others wait",
        2,
        """\
import asyncio
await asyncio.sleep(1.2 * rank)
await asyncio.gather(
    asyncio.to_thread(dist.all_reduce, torch.ones(1), group=everyone), asyncio.sleep(0.5)
)
dist.barrier()
""",
    ),
    tricky(
        "FSDP2 with a slow rank",
        2,
        """\
from torch.distributed.fsdp import fully_shard
sharded = fully_shard(nn.Linear(4, 2))
for step in range(2):
    time.sleep(0.8 * rank)
    sharded(torch.ones(1, 4)).sum().backward()
""",
        is_variant=True,
    ),
    tricky(
        "RPC while the other waits",
        2,
        """\
import torch.distributed.rpc as rpc

def ask():
    time.sleep(1)
    return "answer"

port = [None]
if rank == 0:
    import socket
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = [listening.getsockname()[1]]
dist.broadcast_object_list(port, src=0)
options = rpc.TensorPipeRpcBackendOptions(
    num_worker_threads=4, init_method=f"tcp://127.0.0.1:{port[0]}", _transports=["uv"]
)
rpc.init_rpc(f"rank{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)
if rank == 1:
    assert rpc.rpc_sync("rank0", time.monotonic) > 0
    rpc.rpc_sync("rank0", time.sleep, args=(1.5,))
dist.barrier()
rpc.shutdown()
""",
        is_variant=True,
    ),
    tricky(
        "two slow ranks in a chain of receives",
        4,
        """\
x = torch.zeros(2)
if rank:
    dist.recv(x, rank - 1)
time.sleep(0.5)
if rank < world_size - 1:
    dist.send(x + 1, rank + 1)
assert x[0] == rank
""",
        is_variant=True,
    ),
]
