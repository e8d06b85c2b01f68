"""Correct cells whose weights part between two steps only, for ``%%ddp --sanitize``.

They stay silent; see `sanitized_correct`, whose prelude comes before each.
"""

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

CORRECT_PUT_BACK = {name: _START + code for name, code in (_PUT_BACK | _MADE_EQUAL).items()}
