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


_TRAIN = """\
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
        _TRAIN.replace(
            "    optimizer.zero_grad()\n",
            "    if rank == 1 and step == 2:\n        model.module[1].bias.data[0] = 7\n"
            "    optimizer.zero_grad()\n",
        ),
        ("Ranks 0-1 have different values", "of Sequential", "after step 3 of SGD"),
        10,
        ("rank == 1 and ", "False and "),
    ),
    _replicas(
        "step without synchronization",
        _TRAIN.replace(
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
        _TRAIN.replace(
            "optimizer = ", "if rank == 0:\n    model.module[0].weight.data.fill_(1)\noptimizer = "
        ),
        ("'0.weight' of Sequential", "before the first step of SGD"),
        10,
        ("if rank == 0:", "if True:"),
    ),
    _replicas(
        "learning rate of one rank",
        _TRAIN.replace("parameters(), 0.1", "parameters(), 0.1 * (1 + rank)"),
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
        _TRAIN.replace(
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
        _TRAIN.replace(
            "optimizer = ",
            "model.module.register_buffer('scale', torch.full((2,), 1.0 + rank))\noptimizer = ",
        ).replace("Linear(8, 2)))", "Linear(8, 2)), broadcast_buffers=False)"),
        ("at the end of the cell", "different values in 'scale' of Sequential"),
        9,
        ("1.0 + rank", "1.0"),
    ),
    _replicas(
        "state of the optimizer that one rank changes",
        _TRAIN.replace("0.1)", "0.0, momentum=0.9)").replace(
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

#: They stay silent; see `sanitized_correct`, whose prelude comes before each.
CORRECT_REPLICAS = {
    "accumulated gradients": """\
model = DDP(net())
optimizer = torch.optim.AdamW(model.parameters(), 0.1)
for step in range(6):
    if step % 3 < 2:
        with model.no_sync():
            model(torch.randn(4, 4)).sum().backward()
    else:
        model(torch.randn(4, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    "batch norm and other buffers": """\
model = DDP(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), broadcast_buffers=False)
model.module.register_buffer("table", torch.arange(4.0))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    model(torch.randn(4, 4) + rank).square().mean().backward()
    optimizer.step()
""",
    "two models, two optimizers": """\
models = [DDP(net()), DDP(net())]
optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in models]
for step in range(4):
    for model, optimizer in zip(models, optimizers):
        model(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    "optimizer that shards its states": """\
from torch.distributed.optim import ZeroRedundancyOptimizer
model = DDP(net())
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
for step in range(3):
    model(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "models of each rank": """\
model = net()
with torch.no_grad():
    model[0].weight.add_(rank)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.randn(4, 4)).square().mean().backward()
optimizer.step()
""",
    "models of each rank beside a loss that is averaged": """\
model = nn.Linear(4, 1, bias=False)
with torch.no_grad():
    model.weight.add_(rank)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 4)).square().mean()
    dist.all_reduce(loss.detach().clone().expand(1, 4).contiguous())
    loss.backward()
    optimizer.step()
""",
    "layers of each rank beside one that all have": """\
shared, own = nn.Linear(4, 4), nn.Linear(4, 4)
with torch.no_grad():
    own.weight.add_(rank)
for parameter in shared.parameters():
    dist.broadcast(parameter.data, 0)
optimizer = torch.optim.Adam([*shared.parameters(), *own.parameters()], 0.1)
for step in range(3):
    own(shared(torch.randn(4, 4))).square().mean().backward()
    for parameter in shared.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
""",
    "gradients averaged by hand, in one piece": """\
model = net()
for parameter in model.parameters():
    dist.broadcast(parameter.data, 0)
optimizer = torch.optim.Adam(model.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 4) + rank).square().mean().backward()
    flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    dist.all_reduce(flat)
    at = 0
    for parameter in model.parameters():
        parameter.grad.copy_(flat[at : at + parameter.numel()].view_as(parameter))
        at += parameter.numel()
    optimizer.step()
""",
    "layers of each rank beside one that all have, with an update of one's own": """\
shared, own = nn.Linear(4, 4), nn.Linear(4, 4)
with torch.no_grad():
    own.weight.add_(rank)
for parameter in shared.parameters():
    dist.broadcast(parameter.data, 0)
for step in range(3):
    own(shared(torch.randn(4, 4))).square().mean().backward()
    with torch.no_grad():
        for parameter in shared.parameters():
            dist.all_reduce(parameter.grad)
            parameter -= 0.1 * parameter.grad
        for parameter in own.parameters():
            parameter -= 0.1 * parameter.grad
    shared.zero_grad()
    own.zero_grad()
""",
    "norms of gradients beside models of each rank": """\
model = net()
with torch.no_grad():
    model[0].weight.add_(rank)
for step in range(3):
    model(torch.randn(4, 4)).square().mean().backward()
    norms = torch.stack([parameter.grad.norm() for parameter in model.parameters()])
    dist.all_reduce(norms)
    copies = [parameter.grad.clone() for parameter in model.parameters()]
    for copy in copies:
        dist.all_reduce(copy)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    model.zero_grad()
""",
    "copies of gradients that are added up beside models of each rank, with an optimizer": """\
model = net()
with torch.no_grad():
    model[0].weight.add_(rank)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    model(torch.randn(4, 4)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.clone())
    optimizer.step()
    optimizer.zero_grad()
""",
    "sums of gradients that are looked at before an average of one's own": """\
model = net()
for parameter in model.parameters():
    dist.broadcast(parameter.data, 0)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 4) + rank).square().mean().backward()
    for parameter in model.parameters():
        total = parameter.grad.clone()
        dist.all_reduce(total)
        dist.all_reduce(parameter.grad)
    optimizer.step()
""",
    "a DDP model with an update of one's own": """\
model = DDP(net())
for step in range(3):
    model.zero_grad()
    model(torch.randn(4, 4) + rank).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
""",
    "local SGD": """\
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local_sgd
model = DDP(net())
groups = [dist.new_group([0]), dist.new_group([1])]
state = local_sgd.PostLocalSGDState(
    process_group=None, subgroup=groups[rank], start_localSGD_iter=1)
model.register_comm_hook(state, local_sgd.post_localSGD_hook)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    model(torch.randn(4, 4) + rank).square().mean().backward()
    optimizer.step()
""",
    "uneven inputs, with momentum": """\
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), 0.0, momentum=0.9)
with model.join():
    for step in range(2 + rank):
        model(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
""",
    "uneven inputs": """\
from torch.distributed.algorithms.join import Join
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with Join([model]):
    for step in range(2 + rank):
        model(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
""",
    "a step that raises and is handled": """\
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def closure():
    raise ValueError
for step in range(2):
    try:
        optimizer.step(closure)
    except ValueError:
        pass
    model(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
""",
    "an optimizer that is compiled": """\
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
step = torch.compile(optimizer.step, backend="eager")
for _ in range(2):
    model(torch.randn(4, 4)).square().mean().backward()
    step()
""",
    "learning rate schedule and clipping": """\
model = DDP(net())
optimizer = torch.optim.Adam(model.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for step in range(3):
    optimizer.zero_grad(set_to_none=False)
    model(torch.randn(4, 4)).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    scheduler.step()
""",
}
