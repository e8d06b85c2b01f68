"""Cells whose replicas stay equal, or are meant to part, for ``%%ddp --sanitize``."""

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
    "models of which one rank keeps more, with an update of one's own": """\
kept = []
for size in (2, 3):
    model = nn.Linear(4, size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(size)
    model(torch.ones(1, 4)).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter -= 0.1 * parameter.grad
    model.zero_grad()
    if rank == 0:
        kept.append(model)
""",
    "models of groups of which one rank has more, with optimizers": """\
groups = [dist.new_group([0]), dist.group.WORLD, dist.group.WORLD]
for size, group in zip((1, 2, 3), groups):
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        model = nn.Linear(4, size)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(size)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.ones(1, 4)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=group)
        optimizer.step()
""",
    "a layer without weights yet beside gradients": """\
model = nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(2))
model[0](torch.ones(1, 4)).sum().backward()
dist.all_reduce(torch.ones(1))
""",
    "a class whose __init__ has failed, and whose object is in the traceback": """\
class Half(nn.Module):
    def __init__(self):
        self.layer = nn.Linear(2, 2)
try:
    Half()
except AttributeError as error:
    kept = error
dist.all_reduce(torch.ones(1))
del kept
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
    "uneven inputs in two epochs": """\
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(2):
    with model.join():
        for step in range(2 + rank):
            model(torch.randn(4, 4)).square().mean().backward()
            optimizer.step()
""",
    "uneven inputs of other lengths in each epoch": """\
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(4):
    with model.join():
        for step in range(2 + (rank + epoch) % 2):
            model(torch.randn(4, 4)).square().mean().backward()
            optimizer.step()
""",
    "an optimizer of each rank for its parameters": """\
model = net()
parameters = list(model.parameters())
optimizer = torch.optim.Adam(parameters[rank::world_size], 0.1)
for step in range(3):
    model.zero_grad()
    (model(torch.randn(4, 4)) + rank).square().mean().backward()
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
    optimizer.step()
    for number, parameter in enumerate(parameters):
        dist.broadcast(parameter.data, number % world_size)
""",
    "ranks that take turns to step": """\
model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    optimizer.zero_grad()
    (model(torch.randn(4, 4)) + rank).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    if rank == step % world_size:
        optimizer.step()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, step % world_size)
""",
    "a body that all ranks train, and a head of each rank": """\
model = net()
head = torch.nn.Linear(2, 2)
both = torch.nn.Sequential(model, head)
optimizer = torch.optim.SGD(both[0].parameters(), 0.1)
own = torch.optim.SGD(head.parameters(), 0.1)
for step in range(3):
    both.zero_grad()
    (both(torch.randn(4, 4)) + rank).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    own.step()
""",
    "steps of each rank alone, and then the weights of one": """\
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.randn(4, 4)).square().mean().backward()
with model.no_sync():
    for step in range(2 + rank):
        model(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
for weights in model.parameters():
    dist.broadcast(weights.data, 0)
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
