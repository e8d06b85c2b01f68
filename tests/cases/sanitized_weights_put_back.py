"""Correct cells whose weights part between two steps only, for ``%%ddp --sanitize``.

They stay silent; see `sanitized_correct`, whose prelude comes before each.
"""

from textwrap import indent

_START = """\
model = DDP(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(4, 4) + rank
def loss():
    return model(x).square().mean()
"""
_ASCENT = """\
with model.no_sync():
    loss().backward()
old = [each.detach().clone() for each in model.parameters()]
for each in model.parameters():
    each.data.add_(each.grad, alpha=0.05)
model.zero_grad()
loss().backward()
for each, value in zip(model.parameters(), old):
    each.data.copy_(value)
"""
_LAST = """\
for step in range(2):
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
"""
_ALONE = """\
def alone(count):
    own = torch.optim.SGD(model.module.parameters(), 0.1)
    for step in range(count):
        own.zero_grad()
        model.module(x).square().mean().backward()
        own.step()
"""
_BROADCAST = """\
for each in model.parameters():
    dist.broadcast(each.data, 0)
"""

#: Put back before the step.
_PUT_BACK = {
    "sharpness-aware minimization with an ascent of each rank": f"{_ASCENT}optimizer.step()\n",
    "sharpness-aware minimization with an update of one's own": f"""\
{_ASCENT}with torch.no_grad():
    for each in model.parameters():
        each.sub_(0.1 * each.grad)
""",
    "noise on weights": """\
torch.manual_seed(rank)
for step in range(3):
    noise = [torch.randn_like(each) for each in model.parameters()]
    old = [each.detach().clone() for each in model.parameters()]
    for each, value in zip(model.parameters(), noise):
        each.data.add_(value)
    optimizer.zero_grad()
    loss().backward()
    for each, value in zip(model.parameters(), old):
        each.data.copy_(value)
    optimizer.step()
""",
}
_PUT_BACK["random signs of weights that an optimizer steps elsewhere"] = """\
master = [each.detach().clone().requires_grad_() for each in model.parameters()]
optimizer = torch.optim.SGD(master, 0.1)
torch.manual_seed(rank)
for step in range(2):
    for each, value in zip(model.parameters(), master):
        each.data.copy_(torch.sign(value + 0.5 * torch.randn_like(value)))
    model.zero_grad()
    loss().backward()
    for each, value in zip(model.parameters(), master):
        value.grad = each.grad
    optimizer.step()
"""

#: Made equal again before gradients are averaged.
_MADE_EQUAL = {
    "an optimizer of one rank, whose weights are sent": (
        f"{_ALONE}if rank == 0:\n    alone(1)\n{_BROADCAST}{_LAST}"
    ),
    "an optimizer of one rank, whose weights are sent as objects": f"""\
{_ALONE}if rank == 1:
    alone(2)
box = [model.module.state_dict()]
dist.broadcast_object_list(box, 1)
model.module.load_state_dict(box[0])
{_LAST}""",
    "other numbers of steps of each rank, and a mean of the weights": f"""\
{_ALONE}alone(1 + rank)
for each in model.parameters():
    dist.all_reduce(each.data)
    each.data /= world_size
{_LAST}""",
    "steps of one rank before each of two rounds": f"""\
{_ALONE}for turn in range(2):
    if rank == turn:
        alone(1)
    for each in model.parameters():
        dist.broadcast(each.data, turn)
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
""",
}

#: More of both kinds.
_MORE = {
    "an ascent in each of several steps, with momentum and a schedule": f"""\
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
for step in range(3):
    optimizer.zero_grad()
{indent(_ASCENT, "    ")}    optimizer.step()
    schedule.step()
""",
    "weights against an adversary, with gradients of both passes": """\
for step in range(2):
    optimizer.zero_grad()
    loss().backward()
    old = {name: each.detach().clone() for name, each in model.named_parameters()}
    torch.manual_seed(rank)
    for each in model.parameters():
        each.data.add_(0.01 * torch.randn_like(each) * each.norm())
    loss().backward()
    model.load_state_dict(old)
    optimizer.step()
""",
    "binary weights, each rounded at random": """\
torch.manual_seed(rank)
for step in range(2):
    real = [each.detach().clone() for each in model.parameters()]
    with torch.no_grad():
        for each in model.parameters():
            each.copy_((torch.rand_like(each) < torch.sigmoid(each)).float() * 2 - 1)
    optimizer.zero_grad()
    loss().backward()
    with torch.no_grad():
        for each, value in zip(model.parameters(), real):
            each.copy_(value)
    optimizer.step()
""",
    "weights that each rank masks at random in the forward pass": """\
torch.manual_seed(rank)
for step in range(2):
    kept = model.module.weight.detach().clone()
    model.module.weight.data.mul_(torch.rand_like(kept) > 0.3)
    optimizer.zero_grad()
    loss().backward()
    model.module.weight.data = kept
    optimizer.step()
""",
    "two optimizers, and noise put back before both": """\
optimizers = [torch.optim.Adam([each], 0.1) for each in model.parameters()]
old = [each.detach().clone() for each in model.parameters()]
for each in model.parameters():
    each.data.add_(rank)
loss().backward()
for each, value in zip(model.parameters(), old):
    each.data.copy_(value)
for each in optimizers:
    each.step()
""",
    "an update whose closure puts weights back": """\
def closure():
    old = [each.detach().clone() for each in model.parameters()]
    for each in model.parameters():
        each.data.add_(0.1 * rank)
    optimizer.zero_grad()
    value = loss()
    value.backward()
    for each, before in zip(model.parameters(), old):
        each.data.copy_(before)
    return value
for step in range(2):
    optimizer.step(closure)
""",
    "a head that one rank trains, and sends": """\
if rank == 0:
    own = torch.optim.SGD([model.module.bias], 0.1)
    model.module(x).square().mean().backward()
    own.step()
dist.broadcast(model.module.bias.data, 0)
"""
    + _LAST,
    "weights that one rank trains, in one flat tensor, with an error that is handled": f"""\
from torch.nn.utils import parameters_to_vector, vector_to_parameters
{_ALONE}if rank == 1:
    try:
        alone(2)
        raise ValueError
    except ValueError:
        pass
flat = parameters_to_vector(model.parameters()).detach()
dist.broadcast(flat, 1)
vector_to_parameters(flat, model.parameters())
{_LAST}""",
    "weights that one rank sends to each other by messages": f"""\
{_ALONE}if rank == 0:
    alone(1)
for each in model.parameters():
    dist.send(each.data, 1) if rank == 0 else dist.recv(each.data, 0)
{_LAST}""",
    "weights that ranks gather and average, between rounds of DDP": f"""\
{_ALONE}for turn in range(2):
    alone(1 + (rank + turn) % 2)
    for each in model.parameters():
        parts = [torch.empty_like(each) for _ in range(world_size)]
        dist.all_gather(parts, each.data)
        each.data.copy_(torch.stack(parts).mean(0))
{indent(_LAST, "    ")}""",
    "noise that is put back, with gradients averaged by hand": """\
model = nn.Linear(4, 2)
for each in model.parameters():
    dist.broadcast(each.data, 0)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
old = [each.detach().clone() for each in model.parameters()]
for each in model.parameters():
    each.data.add_(rank)
loss().backward()
for each in model.parameters():
    dist.all_reduce(each.grad)
for each, value in zip(model.parameters(), old):
    each.data.copy_(value)
optimizer.step()
""",
    "noise that is put back, with an update and an average by hand": """\
model = nn.Linear(4, 2)
for each in model.parameters():
    dist.broadcast(each.data, 0)
    each.data.add_(rank)
loss().backward()
for each in model.parameters():
    dist.all_reduce(each.grad)
    each.data.sub_(rank)
    dist.broadcast(each.data, 0)
    each.data.sub_(0.1 * each.grad)
""",
}

CORRECT_PUT_BACK = {name: _START + code for name, code in (_PUT_BACK | _MADE_EQUAL | _MORE).items()}
