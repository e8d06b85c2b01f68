"""Cells with keys that no rank sets, and groups that only some ranks make."""

from tests.cases.hung_cells import HungCell

_STORE = "store = dist.distributed_c10d._get_default_store()\n"

STORE = [
    HungCell(
        name="key that nobody sets",
        before=_STORE,
        code="store.wait(['never'])",
        kind="store-wait",
        waiting="0-1",
        op="store.wait",
        lines={0: 1, 1: 1},
        words=("the key 'never'",),
    ),
    HungCell(
        name="get of a key that nobody sets",
        n=3,
        before=_STORE,
        code="if rank:\n    store.get('epoch')",
        kind="store-wait",
        waiting="1-2",
        op="store.wait",
        lines={1: 2, 2: 2},
        is_variant=True,
    ),
    HungCell(
        name="each waits for the other's key",
        before=_STORE,
        code="""\
mine, theirs = ("a", "b") if rank else ("b", "a")
store.wait([theirs])
store.set(mine, "done")
""",
        kind="store-wait",
        waiting="0",
        op="store.wait",
        lines={0: 2},
    ),
    HungCell(
        name="key that waits for a collective of the one who waits",
        before=_STORE,
        code="""\
if rank == 0:
    store.wait(["go"])
dist.barrier()
store.set("go", "1")
""",
        kind="store-wait",
        waiting="0-1",
        op="store.wait",
        lines={0: 2, 1: 3},
    ),
    HungCell(
        name="store of one's own",
        before="""\
import socket
if rank == 0:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = [listening.getsockname()[1]]
else:
    port = [None]
dist.broadcast_object_list(port, src=0)
own = dist.TCPStore("127.0.0.1", port[0], world_size, is_master=rank == 0)
""",
        code="own.get('weights')",
        kind="store-wait",
        waiting="0-1",
        op="store.wait",
        lines={0: 1, 1: 1},
        is_variant=True,
    ),
    HungCell(
        name="new_group called by some",
        n=3,
        code="if rank:\n    group = dist.new_group()",
        kind="store-wait",
        culprits="0",
        waiting="1-2",
        op="new_group",
        lines={1: 2, 2: 2},
        words=("never called by rank 0",),
    ),
    HungCell(
        name="new_group in another order",
        n=3,
        code="""\
members = [[0, 1], [0, 1, 2]]
for ranks in members if rank else members[::-1]:
    group = dist.new_group(ranks)
""",
        kind="store-wait",
        culprits="0-2",
        waiting="0-2",
        op="new_group",
        lines={0: 3, 1: 3, 2: 3},
        words=("make different groups",),
        is_variant=True,
    ),
    HungCell(
        name="new_group of some before one of all",
        n=4,
        code="""\
if rank < 2:
    pair = dist.new_group([0, 1])
group = dist.new_group()
""",
        kind="store-wait",
        culprits="0-3",
        waiting="0-3",
        op="new_group",
        lines=dict.fromkeys(range(4), 3),
        words=("make different groups",),
        is_variant=True,
    ),
    HungCell(
        name="new_group of different members",
        n=3,
        code="group = dist.new_group([0, 1] if rank == 0 else [0, 1, 2])",
        kind="store-wait",
        culprits="0",
        waiting="0-2",
        op="new_group",
        lines={0: 1, 1: 1, 2: 1},
    ),
]
