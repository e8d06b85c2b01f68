"""Correct cells that train, for ``%%ddp --sanitize``: it stays silent; see `sanitized_correct`."""

CORRECT_TRAINING = {
    "DDP": """\
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 4)).sum().backward()
    optimizer.step()
""",
    "DDP with batch norm": """\
model = DDP(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
optimizer = torch.optim.Adam(model.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
""",
    "no_sync": """\
model = DDP(net(), gradient_as_bucket_view=True)
for step in range(2):
    with model.no_sync():
        model(torch.randn(4, 4)).sum().backward()
    model(torch.randn(4, 4)).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    model.zero_grad()
""",
    "activation checkpointing": """\
model = DDP(net(), static_graph=True)
for step in range(2):
    checkpoint(model, torch.randn(4, 4), use_reentrant=False).sum().backward()
""",
    "gradients that hooks send": """\
model, works = net(), []
for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(
        lambda p: works.append((p, dist.all_reduce(p.grad, async_op=True))))
for step in range(3):
    model(torch.randn(4, 4)).sum().backward()
    for parameter, work in works:
        work.wait()
        parameter.grad /= world_size
    works.clear()
    model.zero_grad()
""",
    "hook of DDP": """\
model = DDP(net())
def hook(state, bucket):
    work = dist.all_reduce(bucket.buffer().div_(world_size), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
model.register_comm_hook(None, hook)
for step in range(2):
    model(torch.randn(4, 4)).sum().backward()
""",
    "hook of DDP in half precision": """\
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
model = DDP(net())
model.register_comm_hook(None, default_hooks.fp16_compress_hook)
for step in range(2):
    model(torch.randn(4, 4)).sum().backward()
""",
    "join": """\
from torch.distributed.algorithms.join import Join
model = DDP(net())
with Join([model]):
    for step in range(2 + rank):
        model(torch.randn(4, 4)).sum().backward()
""",
    "optimizer while gradients of another model are sent": """\
first, second = net(), net()
first(torch.ones(2, 4)).sum().backward()
works = [dist.all_reduce(p.grad, async_op=True) for p in first.parameters()]
second(torch.ones(2, 4)).sum().backward()
torch.optim.SGD(second.parameters(), 0.1).step()
for work in works: work.wait()
torch.optim.SGD(first.parameters(), 0.1).step()
""",
}
