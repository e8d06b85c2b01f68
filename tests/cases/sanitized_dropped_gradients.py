"""Correct cells whose optimizer drops gradients behind its step, for ``%%ddp --sanitize``.

They resemble a step before the averaging, and stay silent; see `sanitized_correct`, whose prelude
comes before each.
"""

_MODEL = """\
model = net()
for each in model.parameters():
    dist.broadcast(each.data, 0)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
def backward():
    (model(torch.randn(4, 4)) + rank).square().mean().backward()
"""

_CODE = {
    "gradients that are averaged before the step": """\
for step in range(3):
    backward()
    for each in model.parameters():
        dist.all_reduce(each.grad)
    optimizer.step()
    optimizer.zero_grad()
""",
    "steps of each rank, and an average of the weights in every second": """\
for step in range(4):
    backward()
    optimizer.step()
    if step % 2:
        for each in model.parameters():
            dist.all_reduce(each.data)
            each.data /= world_size
    optimizer.zero_grad()
""",
    "steps of each rank, and one step with the mean of what they changed": """\
shared = [each.detach().clone().requires_grad_() for each in model.parameters()]
outer = torch.optim.SGD(shared, 0.7, momentum=0.9)
for turn in range(2):
    for step in range(2):
        backward()
        optimizer.step()
        optimizer.zero_grad()
    for old, new in zip(shared, model.parameters()):
        old.grad = old.detach() - new.detach()
        dist.all_reduce(old.grad)
        old.grad /= world_size
    outer.step()
    for old, new in zip(shared, model.parameters()):
        new.data.copy_(old)
    outer.zero_grad()
""",
    "steps of one rank, which sends the weights": """\
for step in range(3):
    backward()
    for each in model.parameters():
        dist.reduce(each.grad, 0)
    if rank == 0:
        optimizer.step()
    for each in model.parameters():
        dist.broadcast(each.data, 0)
    optimizer.zero_grad()
""",
    "a batch that all ranks leave out": """\
for step in range(3):
    backward()
    for each in model.parameters():
        dist.all_reduce(each.grad)
    if step != 1:
        optimizer.step()
    optimizer.zero_grad()
""",
    "steps of each rank, and the norm of the sum of copies of gradients": """\
for step in range(3):
    backward()
    optimizer.step()
    copies = [each.grad.clone() for each in model.parameters()]
    for copy in copies:
        dist.all_reduce(copy)
    optimizer.zero_grad()
""",
    "weights that an optimizer steps elsewhere": """\
master = [each.detach().clone().requires_grad_() for each in model.parameters()]
outer = torch.optim.SGD(master, 0.1)
for step in range(3):
    backward()
    for each, other in zip(model.parameters(), master):
        dist.all_reduce(each.grad)
        other.grad = each.grad.clone()
    outer.step()
    for each, other in zip(model.parameters(), master):
        each.data.copy_(other)
    optimizer.zero_grad()
    outer.zero_grad()
""",
    "steps before averages, and then the weights of one rank": """\
for step in range(3):
    backward()
    optimizer.step()
    for each in model.parameters():
        dist.all_reduce(each.grad)
    optimizer.zero_grad()
for each in model.parameters():
    dist.broadcast(each.data, 0)
""",
    "an optimizer of each layer": """\
layers = [torch.optim.SGD(layer.parameters(), 0.1) for layer in model if list(layer.parameters())]
for step in range(3):
    backward()
    for each in model.parameters():
        dist.all_reduce(each.grad)
    for own in layers:
        own.step()
        own.zero_grad()
""",
}

CORRECT_DROPPED_GRADIENTS = {name: _MODEL + code for name, code in _CODE.items()}
