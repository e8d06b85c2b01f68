"""Cells with messages without a partner."""

from tests.cases.hung_cells import HungCell

UNMATCHED = [
    HungCell(
        name="recv from any rank, once more than ranks send",
        n=3,
        code="""\
x = torch.ones(2)
if rank == 0:
    for _ in range(3):
        dist.recv(x)
else:
    dist.send(x, 0)
""",
        kind="p2p-unmatched",
        culprits="1-2",
        waiting="0",
        op="recv",
        lines={0: 4, 1: 6, 2: 6},
        quotes="Rank 0 has called recv (line 4) 3 times, and 2 sends were called for it, by "
        "ranks 1-2. Let it receive as often as others send to it, or let another rank send.",
        is_variant=True,
    ),
    HungCell(
        name="ring of receives in batches",
        n=3,
        code="""\
x = torch.ones(2)
for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, (rank + 1) % 3)]):
    work.wait()
""",
        kind="p2p-cycle",
        culprits="0-2",
        waiting="0-2",
        op="recv",
        lines={0: 2, 1: 2, 2: 2},
        quotes="let each rank also isend to the rank that receives from it, "
        "`(rank - 1) % world_size`, in the same batch_isend_irecv (line 2).",
        is_variant=True,
    ),
    HungCell(
        name="recv that one rank leaves out in an iteration, with sends to two ranks",
        n=3,
        code="""\
x = torch.ones(2)
for i in range(3):
    if rank == 0:
        dist.send(x, 1)
        dist.send(x, 2)
    elif rank == 2 or i < 2:
        dist.recv(x, 0)
""",
        kind="p2p-unmatched",
        culprits="1",
        waiting="0,2",
        op="send",
        lines={0: 4, 1: 7, 2: 7},
        quotes="Let rank 1 call recv from rank 0 in line 7, inside `elif rank == 2 or i < 2:` "
        "(line 6), as often as rank 0 calls send (line 4): it has called it twice, rank 0 3 times.",
        is_variant=True,
    ),
    HungCell(
        name="recv that one rank leaves out before a collective",
        n=3,
        code="""\
x = torch.ones(2)
for it in range(3):
    dist.all_reduce(x)
    if rank == 0:
        dist.send(x, 2)
    if rank == 2 and it != 1:
        dist.recv(x, 0)
""",
        kind="p2p-unmatched",
        culprits="0,2",
        waiting="0-2",
        op="send",
        lines={0: 5, 1: 3, 2: 3},
        quotes="Let rank 2 call recv from rank 0 in line 7, inside `if rank == 2 and it != 1:`",
        is_variant=True,
    ),
    HungCell(
        name="no recv of one rank, with sends to two ranks",
        n=3,
        code="""\
if rank == 0:
    dist.send(torch.ones(2), 1)
    dist.send(torch.ones(2), 2)
elif rank == 2:
    dist.recv(torch.ones(2), 0)
""",
        kind="p2p-unmatched",
        culprits="1",
        waiting="0,2",
        op="send",
        lines={0: 2, 2: 5},
        quotes="Let rank 1 receive from rank 0.",
        is_variant=True,
    ),
    HungCell(
        name="recv without send",
        code="if rank:\n    dist.recv(torch.empty(1), 0)",
        kind="p2p-unmatched",
        culprits="0",
        waiting="1",
        op="recv",
        lines={1: 2},
        words=("Rank 1 waits in recv from rank 0, and rank 0 never sends it",),
    ),
    HungCell(
        name="send without recv",
        n=3,
        code="if rank == 2:\n    dist.send(torch.ones(1), 0)",
        kind="p2p-unmatched",
        culprits="0",
        waiting="2",
        op="send",
        lines={2: 2},
    ),
    HungCell(
        name="one recv too many",
        code="""\
for step in range(2 + rank):
    if rank:
        dist.recv(torch.empty(3), 0)
    else:
        dist.send(torch.ones(3), 1)
""",
        kind="p2p-unmatched",
        culprits="0",
        waiting="1",
        op="recv",
        lines={0: 5, 1: 3},
        is_variant=True,
    ),
    HungCell(
        name="wrong tag",
        code="""\
if rank:
    dist.recv(torch.empty(1), 0, tag=2)
else:
    dist.send(torch.ones(1), 1, tag=3)
""",
        kind="p2p-unmatched",
        culprits="0-1",
        waiting="0-1",
        lines={0: 4, 1: 2},
        words=("tag 2",),
    ),
    HungCell(
        name="wrong peer",
        n=3,
        code="""\
if rank == 0:
    dist.send(torch.ones(1), 1)
elif rank == 1:
    dist.recv(torch.empty(1), 2)
""",
        kind="p2p-unmatched",
        culprits="2",
        waiting="0-1",
        op="recv",
        lines={0: 2, 1: 4},
    ),
    HungCell(
        name="send to the wrong rank, whose handle nobody keeps",
        n=4,
        code="""\
if rank == 0:
    dist.isend(torch.ones(1), dst=2)
if rank == 1:
    dist.recv(torch.empty(1), src=0)
""",
        kind="p2p-unmatched",
        culprits="0",
        waiting="1",
        op="recv",
        lines={0: 2, 1: 4},
        quotes="Give send `dst=1` on rank 0",
        is_variant=True,
    ),
    HungCell(
        name="wrong group",
        code="""\
if rank:
    dist.recv(torch.empty(1), 0, group=everyone)
else:
    dist.send(torch.ones(1), 1)
""",
        kind="p2p-unmatched",
        culprits="0-1",
        waiting="0-1",
        lines={0: 4, 1: 2},
    ),
    HungCell(
        name="recv from any source",
        n=3,
        code="if rank == 0:\n    dist.recv(torch.empty(1))",
        kind="p2p-unmatched",
        culprits="1-2",
        waiting="0",
        op="recv",
        lines={0: 2},
    ),
    HungCell(
        name="irecv",
        code="if rank:\n    work = dist.irecv(torch.empty(1), 0)\n    work.wait()",
        kind="p2p-unmatched",
        culprits="0",
        waiting="1",
        op="recv",
        lines={1: 2},
    ),
    HungCell(
        name="batch_isend_irecv with one receive left out",
        n=4,
        code="""\
ops = [dist.P2POp(dist.isend, torch.ones(2), (rank + 1) % world_size)]
if rank != 2:
    ops.append(dist.P2POp(dist.irecv, torch.empty(2), (rank - 1) % world_size))
for work in dist.batch_isend_irecv(ops):
    work.wait()
""",
        kind="p2p-unmatched",
        culprits="2",
        waiting="1",
        op="send",
        lines={1: 4},
    ),
    HungCell(
        name="pipeline with one microbatch too few",
        n=3,
        code="""\
x = torch.zeros(2)
for microbatch in range(3 if rank else 2):
    if rank:
        dist.recv(x, rank - 1)
    if rank < 2:
        dist.send(x + 1, rank + 1)
""",
        kind="p2p-unmatched",
        culprits="0",
        waiting="1-2",
        op="recv",
        lines={0: 6, 1: 4, 2: 4},
    ),
    HungCell(
        name="pipeline whose last stage sends no gradient back",
        n=3,
        code="""\
x = torch.ones(2)
if rank:
    dist.recv(x, rank - 1)
if rank < 2:
    dist.send(x, rank + 1)
    dist.recv(x, rank + 1)
if rank == 1:
    dist.send(x, 0)
""",
        kind="p2p-unmatched",
        culprits="2",
        waiting="0-1",
        op="recv",
        lines={0: 6, 1: 6},
        is_variant=True,
    ),
    HungCell(
        name="send while the other is in a collective",
        code="if rank == 0:\n    dist.send(torch.ones(1), 1)\ndist.barrier()",
        kind="p2p-unmatched",
        culprits="0-1",
        waiting="0-1",
        lines={0: 2, 1: 3},
    ),
    HungCell(
        name="recv_object_list without a sender",
        code="if rank:\n    dist.recv_object_list([None], src=0)",
        kind="p2p-unmatched",
        culprits="0",
        waiting="1",
        op="recv",
        lines={1: 2},
    ),
]
