"""Cells that send NaN or Inf, for ``%%ddp --sanitize``, and correct cells that resemble them."""

from tests.cases.sanitized import WrongCell, replaced


def _value(
    name: str, code: str, fix: tuple[str, str], words: tuple[str, ...], *lines: int,
    culprits: str = "1",
) -> WrongCell:  # fmt: skip
    fixed = replaced(code, fix)
    return WrongCell(name, code, fixed, "not-finite", words, lines, culprits=culprits)


VALUES = [
    _value(
        "NaN in a loss",
        """\
loss = torch.ones(1)
for step in range(3):
    if rank == 1 and step == 1:
        loss = loss / 0 - loss / 0
    dist.all_reduce(loss)
""",
        ("loss / 0 - loss / 0", "loss / 2"),
        ("Rank 1 gave NaN to all_reduce",),
        5,
    ),
    _value(
        "NaN that a helper is given",
        """\
def average(t):
    dist.all_reduce(t)
    return t / world_size
for step in range(3):
    loss = torch.ones(1)
    if rank == 1 and step == 1:
        loss = loss / 0 - loss / 0
    average(loss)
""",
        ("loss / 0 - loss / 0", "loss / 2"),
        ("Rank 1 gave NaN to all_reduce",),
        2,
        8,
    ),
    _value(
        "Inf in a sum",
        "x = torch.full((4,), float('inf') if rank else 0.0)\n" + 2 * "dist.all_reduce(x)\n",
        ("'inf'", "'1'"),
        ("Rank 1 gave Inf to all_reduce",),
        2,
    ),
    _value(
        "NaN on both ranks",
        "x = torch.tensor([1.0, float('nan')])\ndist.all_gather_into_tensor(torch.empty(4), x)",
        ("'nan'", "'inf'"),
        ("Ranks 0-1 gave NaN to all_gather_into_tensor",),
        2,
        culprits="0-1",
    ),
    _value(
        "NaN in a message",
        """\
x = torch.full((2,), float("nan") if rank else 1.0)
y = torch.empty(2)
work = dist.isend(x, 1 - rank)
dist.recv(y, 1 - rank)
work.wait()
dist.all_reduce(y)
""",
        ('float("nan") if rank else 1.0', "2.0"),
        ("Rank 1 gave NaN to send",),
        3,
    ),
    _value(
        "NaN of the root",
        "x = torch.full((2,), float('nan') if rank else 1.0)\ndist.broadcast(x, 1)",
        ("'nan'", "'1'"),
        ("Rank 1 gave NaN to broadcast",),
        2,
    ),
    _value(
        "NaN in half precision",
        "x = torch.full((9,), float('nan') if rank else 1.0).bfloat16()\ndist.all_reduce(x)",
        ("'nan'", "'1'"),
        ("Rank 1 gave NaN to all_reduce",),
        2,
    ),
    _value(
        "gradient of DDP",
        """\
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
model = torch.nn.parallel.DistributedDataParallel(net)
for step in range(2):
    loss = model(torch.ones(2, 4)).square().mean()
    if rank == 1 and step == 1:
        loss = loss * float("nan")
    loss.backward()
""",
        ('float("nan")', "2"),
        ("Rank 1 gave NaN to all_reduce at step 1 (#", "in the gradient of '1.", "of Sequential"),
        8,
    ),
    _value(
        "gradient that is sent by hand",
        """\
layer = torch.nn.Linear(4, 1)
layer(torch.ones(2, 4)).sum().backward()
if rank == 1:
    layer.weight.grad[0, 2] = float("nan")
for parameter in layer.parameters():
    dist.all_reduce(parameter.grad)
""",
        ('float("nan")', "2"),
        ("Rank 1 gave NaN to all_reduce", "in the gradient of 'weight' of Linear"),
        6,
    ),
]

#: They stay silent; see `sanitized_correct`.
CORRECT_VALUES = {
    "mask with Inf": """\
mask = torch.full((4, 4), float("-inf")).triu(1)
dist.broadcast(mask, 0)
dist.all_gather_into_tensor(torch.empty(8, 4), mask)
""",
    "Inf as the neutral element": """\
best = torch.tensor(float("-inf"))
dist.all_reduce(best, dist.ReduceOp.MAX)
dist.all_reduce(torch.tensor(float("inf")), dist.ReduceOp.MIN)
""",
    "large finite values": """\
dist.all_reduce(torch.full((4,), 3e38))
dist.all_reduce(torch.full((4,), 6e4, dtype=torch.float16), dist.ReduceOp.MAX)
""",
    "NaN in what is received": """\
x = torch.full((4,), float("nan") if rank else 1.0)
dist.broadcast(x, 0)
parts = [torch.full((4,), float("nan")) for _ in range(2)]
dist.all_gather(parts, x)
""",
    "NaN that is not sent": """\
x = torch.zeros(4) / 0
dist.all_reduce(torch.ones(4))
dist.all_reduce(x.isnan().float())
dist.all_reduce(torch.nan_to_num(x))
""",
    "integers and booleans": """\
dist.all_reduce(torch.arange(4))
dist.all_reduce(torch.tensor([True, False]), dist.ReduceOp.MAX)
dist.all_reduce(torch.ones(2, dtype=torch.complex64))
""",
    "scaled gradients": """\
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
for step in range(2):
    optimizer.zero_grad()
    scaler.scale(model(torch.randn(4, 4) * 1e4).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
""",
}
