"""Cells in which the replicas of a model part, for ``%%ddp --sanitize``; and correct ones."""

from tests.cases.sanitized import WrongCell, replaced


def _replicas(
    name: str, code: str, words: tuple[str, ...], line: int, *fixes: tuple[str, str]
) -> WrongCell:
    fixed = replaced(code, *fixes)
    return WrongCell(name, code, fixed, "parted-replicas", words, (line,))


def _copied(name: str, code: str, lines: tuple[int, ...], *fixes: tuple[str, str]) -> WrongCell:
    fixed = replaced(code, *fixes)
    words = ("different values in '0.weight' and 3 more of Sequential", "after step 1 of SGD")
    return WrongCell(name, code, fixed, "parted-replicas", words, lines)


#: Four steps of a model whose replicas stay equal.
TRAIN = """\
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(1)
model = DDP(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    optimizer.zero_grad()
    model(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
"""

REPLICAS = [
    _replicas(
        "weight that one rank changes",
        TRAIN.replace(
            "    optimizer.zero_grad()\n",
            "    if rank == 1 and step == 2:\n        model.module[1].bias.data[0] = 7\n"
            "    optimizer.zero_grad()\n",
        ),
        ("Ranks 0-1 have different values", "of Sequential", "after step 3 of SGD"),
        10,
        ("rank == 1 and ", "False and "),
    ),
    _replicas(
        "another optimizer on one rank",
        TRAIN.replace("torch.optim.SGD(", "(torch.optim.Adam if rank else torch.optim.SGD)("),
        ("different values in '0.weight' and 3 more", "after step 1 of its optimizer"),
        8,
        ("torch.optim.Adam if rank else ", "torch.optim.SGD if rank else "),
    ),
    _replicas(
        "step without synchronization",
        TRAIN.replace(
            "    model(torch.randn(4, 4)).square().mean().backward()\n",
            "    with model.no_sync():\n"
            "        model(torch.randn(4, 4) + rank).square().mean().backward()\n",
        ),
        ("different values in '0.weight' and 3 more", "after step 1 of SGD"),
        9,
        ("    with model.no_sync():\n        model", "    model"),
    ),
    _replicas(
        "weights loaded on one rank",
        TRAIN.replace(
            "optimizer = ", "if rank == 0:\n    model.module[0].weight.data.fill_(1)\noptimizer = "
        ),
        ("'0.weight' of Sequential", "before the first step of SGD"),
        10,
        ("if rank == 0:", "if True:"),
    ),
    _replicas(
        "learning rate of one rank",
        TRAIN.replace("parameters(), 0.1", "parameters(), 0.1 * (1 + rank)"),
        ("different values", "after step 1 of SGD"),
        8,
        (" * (1 + rank)", ""),
    ),
    _replicas(
        "weights of one's own averaging, which no rank has sent",
        """\
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
torch.manual_seed(rank)
model.reset_parameters()
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 4)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.data, op=dist.ReduceOp.AVG)
    optimizer.step()
""",
        ("different values in 'weight' and 1 more", "of Linear", "before the first step of SGD"),
        10,
        ("manual_seed(rank)", "manual_seed(1)"),
    ),
    _replicas(
        "learning rate of one rank, with averaging of one's own",
        """\
model = torch.nn.Linear(4, 2)
for parameter in model.parameters():
    dist.broadcast(parameter.data, 0)
optimizer = torch.optim.SGD(model.parameters(), 0.1 * (1 + rank))
for step in range(3):
    model(torch.randn(4, 4)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size
    optimizer.step()
""",
        (
            "different values",
            "of Linear",
            "after step 1 of SGD",
        ),
        10,
        (" * (1 + rank)", ""),
    ),
    _replicas(
        "learning rate of one rank, with averaging in one flat copy",
        """\
model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Linear(2, 2))
for parameter in model.parameters():
    dist.broadcast(parameter.data, 0)
optimizer = torch.optim.SGD(model.parameters(), 0.1 * (1 + rank))
def average(gradients):
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, part in zip(gradients, flat.split([each.numel() for each in gradients])):
        gradient.copy_(part.view_as(gradient) / world_size)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 4)).square().mean().backward()
    average([parameter.grad for parameter in model.parameters()])
    optimizer.step()
""",
        ("different values in '0.weight' and 3 more", "of Sequential", "after step 1 of SGD"),
        14,
        (" * (1 + rank)", ""),
    ),
    _replicas(
        "learning rate of one rank, with an update of one's own",
        """\
model = torch.nn.Linear(4, 2)
for parameter in model.parameters():
    dist.broadcast(parameter.data, 0)
lr = 0.1 * (1 + rank)
for step in range(3):
    model(torch.randn(4, 4)).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter -= lr * parameter.grad / world_size
    model.zero_grad()
""",
        ("'weight' and 1 more of Linear at the end of the cell", "line 9 gives all ranks"),
        9,
        (" * (1 + rank)", ""),
    ),
    _replicas(
        "weights that no rank has sent, with an update of one's own",
        """\
torch.manual_seed(rank)
model = torch.nn.Linear(4, 2)
for step in range(3):
    model.zero_grad()
    model(torch.randn(4, 4)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.data.sub_(0.1 * parameter.grad)
""",
        ("had different values in 'weight' and 1 more of Linear before line 7 gave",),
        7,
        ("manual_seed(rank)", "manual_seed(1)"),
    ),
    _replicas(
        "weights that one rank alone updates, with a flat copy and an update of one's own",
        """\
model = torch.nn.Linear(4, 2)
for parameter in model.parameters():
    dist.broadcast(parameter.data, 0)
for step in range(2):
    model.zero_grad()
    model(torch.randn(4, 4)).square().mean().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    for gradient, part in zip(gradients, flat.split([each.numel() for each in gradients])):
        gradient.copy_(part.view_as(gradient))
    if rank == 0:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
""",
        ("'weight' and 1 more of Linear at the end of the cell", "line 9 gives all ranks"),
        9,
        ("if rank == 0:", "if True:"),
    ),
    _replicas(
        "an update of one's own that adds noise of each rank to a DDP model",
        TRAIN.replace(
            "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n", "torch.manual_seed(rank)\n"
        )
        .replace("optimizer.zero_grad()", "model.zero_grad()")
        .replace(
            "    optimizer.step()\n",
            "    with torch.no_grad():\n        for parameter in model.parameters():\n"
            "            parameter.sub_(0.1 * parameter.grad + torch.randn_like(parameter))\n",
        ),
        ("'0.weight' and 3 more of Sequential at the end of the cell", "line 7 gives all ranks"),
        7,
        (" + torch.randn_like(parameter)", ""),
    ),
    _copied(
        "flat copy of the gradients that is never copied back",
        """\
model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Linear(2, 2))
for parameter in model.parameters():
    dist.broadcast(parameter.data, 0)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 4) + rank).square().mean().backward()
    flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    dist.all_reduce(flat)
    optimizer.step()
""",
        (9, 10),
        (
            "    optimizer.step()",
            "    torch.nn.utils.vector_to_parameters(\n"
            "        flat / 2, [parameter.grad for parameter in model.parameters()])\n"
            "    optimizer.step()",
        ),
    ),
    _copied(
        "clones of the gradients that are never read",
        """\
model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Linear(2, 2))
for parameter in model.parameters():
    dist.broadcast(parameter.data, 0)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 4) + rank).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.clone())
    optimizer.step()
""",
        (9, 10),
        (".grad.clone()", ".grad"),
    ),
    _replicas(
        "buffer that one rank changes",
        TRAIN.replace(
            "optimizer = ",
            "model.module.register_buffer('scale', torch.full((2,), 1.0 + rank))\noptimizer = ",
        ).replace("Linear(8, 2)))", "Linear(8, 2)), broadcast_buffers=False)"),
        ("at the end of the cell", "different values in 'scale' of Sequential"),
        9,
        ("1.0 + rank", "1.0"),
    ),
    _replicas(
        "state of the optimizer that one rank changes",
        TRAIN.replace("0.1)", "0.0, momentum=0.9)").replace(
            "    optimizer.zero_grad()\n",
            "    if rank == 1 and step == 3:\n"
            "        optimizer.state[model.module[0].bias]['momentum_buffer'].add_(1)\n"
            "    optimizer.zero_grad()\n",
        ),
        ("at the end of the cell", "'momentum_buffer of 0.bias' of Sequential"),
        10,
        ("rank == 1 and ", "False and "),
    ),
]
