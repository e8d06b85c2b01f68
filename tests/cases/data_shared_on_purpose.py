"""Correct cells in which all ranks read the same samples, for ``%%ddp --sanitize data``.

Each runs on two ranks, after `tests.cases.sanitized_data.DATA_PRELUDE`.
"""

#: No card and no line comes: the code of each cell, and the words of its lines.
SHARED_ON_PURPOSE: dict[str, tuple[str, tuple[str, ...]]] = {
    "tensor parallelism of DTensor": (
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "from torch.distributed.tensor.parallel import *\n"
        "net = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Linear(4, 1))\n"
        "plan = {'0': ColwiseParallel(), '1': RowwiseParallel()}\n"
        "net = parallelize_module(net, init_device_mesh('cpu', (world_size,)), plan)\n"
        "optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        "for batch in DataLoader(data, 5): net(batch[0]).sum().backward(); optimizer.step()\n",
        (),
    ),
    "tensor parallelism by hand": (
        "import warnings, torch.distributed.nn.functional as functional\n"
        "warnings.simplefilter('ignore')\n"
        "one, two = torch.nn.Linear(1, 4), torch.nn.Linear(4, 1, bias=False)\n"
        "optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], 0.1)\n"
        "for batch in DataLoader(data, 5):\n"
        "    functional.all_reduce(two(one(batch[0]))).sum().backward(); optimizer.step()\n",
        (),
    ),
    "pipeline": (
        "from torch.distributed.pipelining import PipelineStage, ScheduleGPipe\n"
        "part = torch.nn.Linear(1, 1)\n"
        "stage = PipelineStage(part, rank, world_size, torch.device('cpu'))\n"
        "schedule = ScheduleGPipe(stage, 2, loss_fn=lambda one, other: (one - other).sum())\n"
        "optimizer = torch.optim.SGD(part.parameters(), 0.1)\n"
        "for batch in DataLoader(data, 2):\n"
        "    schedule.step(batch[0]) if rank == 0 else schedule.step(target=batch[0])\n"
        "    optimizer.step()\n",
        (),
    ),
    "one rank trains, and the other one sends it changed samples": (
        "own = torch.nn.Linear(1, 1); optimizer = torch.optim.SGD(own.parameters(), 0.1)\n"
        "for batch in DataLoader(data, 5):\n"
        "    if rank == 1: dist.send(batch[0] + 1, 0)\n"
        "    else:\n"
        "        more = torch.empty(5, 1); dist.recv(more, 1)\n"
        "        own(torch.cat([batch[0], more])).sum().backward(); optimizer.step()\n",
        (),
    ),
    "a part of each batch on each rank": (
        "part = slice(rank, None, world_size)\n"
        "for batch in DataLoader(data, 5):\n    fit([batch[0][part]])\n",
        (),
    ),
}
