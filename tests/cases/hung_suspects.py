"""Cells in which a rank waits for one that still runs: they get a notice, and are not ended."""

from tests.cases.hung_cells import LET_GO_OF_WORKERS, HungCell

#: ``kind``, ``culprits`` and the other fields are those of the notice.
SUSPECTS = [
    HungCell(
        name="endless loop",
        n=3,
        code="if rank == 0:\n    while True:\n        pass\ndist.all_reduce(torch.ones(1))",
        kind="straggler",
        culprits="0",
        waiting="1-2",
        op="all_reduce",
        lines={1: 4, 2: 4},
    ),
    HungCell(
        name="endless sleep",
        code="if rank == 1:\n    time.sleep(1000)\ndist.barrier()",
        kind="stuck-outside",
        culprits="1",
        waiting="0",
        op="barrier",
        lines={0: 3, 1: 2},
        is_variant=True,
    ),
    HungCell(
        name="lock that nobody lets go",
        code="""\
lock = threading.Lock()
lock.acquire()
if rank == 0:
    lock.acquire()
dist.barrier()
""",
        kind="stuck-outside",
        culprits="0",
        waiting="1",
        op="barrier",
        lines={0: 4, 1: 5},
    ),
    HungCell(
        name="empty queue",
        code="""\
import queue
if rank == 0:
    queue.Queue().get()
dist.recv(torch.empty(1), 1 - rank)
""",
        kind="stuck-outside",
        culprits="0",
        waiting="1",
        op="recv",
        lines={0: 3, 1: 4},
        is_variant=True,
    ),
    HungCell(
        name="child that does not end",
        n=3,
        code="""\
import subprocess
if rank == 2:
    subprocess.run(["sleep", "1000"])
dist.barrier()
""",
        kind="stuck-outside",
        culprits="2",
        waiting="0-1",
        op="barrier",
        lines={0: 4, 1: 4, 2: 3},
    ),
    HungCell(
        name="worker of a data loader",
        code="""\
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if rank == 1 and index == 2:
            time.sleep(1000)
        return torch.ones(4)

for batch in torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=1):
    dist.all_reduce(batch)
""",
        after=LET_GO_OF_WORKERS,
        kind="stuck-outside",
        culprits="1",
        waiting="0",
        op="all_reduce",
        lines={0: 11, 1: 10},
    ),
    HungCell(
        name="C code that holds the GIL",
        code="""\
import re
if rank == 0:
    re.match(r"(a+)+$", "a" * 99 + "b")
dist.barrier()
""",
        kind="stuck-outside",
        culprits="0",
        waiting="1",
        op="barrier",
        lines={1: 4},
    ),
    HungCell(
        name="rank that waits for a key of one that loops",
        before="",
        code="""\
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    store.get("late")
while rank:
    pass
""",
        kind="store-wait",
        waiting="0",
        op="store.wait",
        lines={0: 3},
    ),
    HungCell(
        name="loop that polls a key with another name",
        code="""\
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    store.set("weights/ready", "yes")
while rank and not store.check(["weight/ready"]):
    time.sleep(0.05)
""",
        kind="store-wait",
        waiting="1",
        op="store.check",
        quotes="rank 0 has set 'weights/ready', not 'weight/ready'",
        is_variant=True,
    ),
    HungCell(
        name="loop that polls a counter, while the others wait for it",
        n=3,
        code="""\
store = dist.distributed_c10d._get_default_store()
store.add("came", int(rank != 1))
while rank == 0 and store.add("came", 0) < world_size:
    time.sleep(0.05)
dist.barrier()
""",
        kind="store-wait",
        waiting="0",
        op="store.add",
        quotes="Set the key",
        is_variant=True,
    ),
    HungCell(
        name="store that no process serves",
        code="""\
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
if rank == 1:
    dist.TCPStore("127.0.0.1", port, is_master=False)
""",
        kind="store-wait",
        waiting="1",
        op="TCPStore",
        lines={1: 5},
        quotes="is_master=True",
    ),
    HungCell(
        name="store with fewer clients than its world_size",
        code="if rank == 0:\n    dist.TCPStore('127.0.0.1', 0, 2, is_master=True)",
        kind="store-wait",
        waiting="0",
        op="TCPStore",
        lines={0: 2},
        quotes="Make it on 2 ranks",
        is_variant=True,
    ),
    HungCell(
        name="thread that may still call",
        n=3,
        code="""\
if rank == 0:
    threading.Thread(target=threading.Event().wait, args=(1000,), daemon=True).start()
else:
    dist.all_reduce(torch.ones(1))
""",
        kind="stuck-outside",
        culprits="0",
        waiting="1-2",
        op="all_reduce",
        lines={1: 4, 2: 4},
        is_variant=True,
    ),
]
