"""Cells whose replicas differ at their end, for ``%%ddp --sanitize``: the steps do not show it."""

from dataclasses import dataclass

from tests.cases.sanitized import WrongCell, replaced
from tests.cases.sanitized_replicas import TRAIN


@dataclass(frozen=True)
class EndCell(WrongCell):
    """A wrong cell, with words of the next step."""

    next_words: tuple[str, ...] = ()


def _end(
    name: str, code: str, words: tuple[str, ...], lines: tuple[int, ...],
    *fixes: tuple[str, str], next_words: tuple[str, ...] = (), culprits: str = "0-1",
) -> EndCell:  # fmt: skip
    fixed = replaced(code, *fixes)
    kind = "parted-replicas"
    return EndCell(name, code, fixed, kind, words, lines, culprits, next_words=next_words)


_STEP = "    optimizer.step()\n"
_AVERAGED = """\
torch.manual_seed(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
torch.manual_seed(rank)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 4)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
"""
_NORMED = """\
from torch.nn.parallel import DistributedDataParallel as DDP
layers = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8)
model = DDP(torch.nn.Sequential(*layers), broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.randn(4, 4) + rank)
model.eval()
for step in range(2):
    model(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
"""

ENDS = [
    _end(
        "step that one rank leaves out, after an average by hand",
        _AVERAGED.replace(_STEP, "    if rank == 0 or step != 1:\n        optimizer.step()\n"),
        ("Rank 1 made 2 steps of SGD", "rank 0 made 3", "replicas of Linear"),
        (11,),
        ("rank == 0 or step != 1", "True"),
        next_words=("Let all ranks step equally often",),
    ),
    _end(
        "ranks that step in turn, whose last broadcast is missing",
        _AVERAGED.replace(
            _STEP,
            "    if rank == step % world_size:\n        optimizer.step()\n    if step < 2:\n"
            "        for parameter in model.parameters():\n"
            "            dist.broadcast(parameter.data, step % world_size)\n",
        ),
        (
            "at the end of the cell, different values in 'weight' and 1 more of Linear",
            "rank 0 made 2 steps, rank 1 made 1 step of SGD",
            "in different iterations",
        ),
        (11,),
        ("step < 2", "True"),
        next_words=("Broadcast each parameter from the rank that stepped", "after the last one"),
    ),
    _end(
        "optimizer that lacks a parameter on one rank, after an average by hand",
        _AVERAGED.replace(
            "SGD(model.parameters()", "SGD(list(model.parameters())[: 1 + (rank == 0)]"
        ),
        ("Rank 1 has an optimizer without 'bias' of",),
        (10,),
        ("[: 1 + (rank == 0)]", "[:2]"),
        next_words=("Give SGD the same parameters on all ranks", "broadcast"),
    ),
    _end(
        "last step that one rank skips",
        TRAIN.replace(_STEP, f"    if rank == 1 and step == 3:\n        continue\n{_STEP}"),
        ("Rank 1 made 3 steps of SGD", "rank 0 made 4", "Sequential are not equal"),
        (10,),
        ("rank == 1 and", "False and"),
        next_words=("keeps rank 1 from line 10",),
    ),
    _end(
        "step in the middle that one rank skips",
        TRAIN.replace(_STEP, f"    if rank == 1 and step == 1:\n        continue\n{_STEP}"),
        ("Rank 1 made 3 steps of SGD", "rank 0 made 4", "Sequential are not equal"),
        (10,),
        ("rank == 1 and", "False and"),
        next_words=("perhaps `continue` in line 9, inside `if", "keeps rank 1 from line 10"),
    ),
    _end(
        "steps of one rank alone",
        TRAIN.replace(_STEP, "    if rank == 0:\n        optimizer.step()\n"),
        ("Rank 1 made no step of SGD", "rank 0 made 4"),
        (9,),
        ("rank == 0", "True"),
        next_words=("keeps rank 1 from line 9",),
    ),
    _end(
        "steps of one rank alone in a function whose model is gone",
        """\
from torch.nn.parallel import DistributedDataParallel as DDP
def train():
    model = DDP(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.randn(4, 4)).square().mean().backward()
    if rank == 1:
        optimizer.step()
train()
""",
        ("Rank 0 made no step of SGD", "rank 1 made 1", "of Linear are not equal"),
        (7,),
        ("rank == 1", "True"),
    ),
    _end(
        "steps of one rank alone, whose weights are not sent",
        TRAIN.replace(
            "for step",
            "if rank == 0:\n    own = torch.optim.SGD(model.module[1].parameters(), 0.1)\n"
            "    model.module(torch.randn(4, 4)).sum().backward()\n    own.step()\nfor step",
        ),
        ("in '1.weight' and 1 more of Sequential", "have in common", "rank 0 alone", "in line 8"),
        (8, 12),
        (
            "own.step()\n",
            "own.step()\nfor each in model.parameters():\n    dist.broadcast(each.data, 0)\n",
        ),
        next_words=("`broadcast` each parameter, also '1.weight'",),
    ),
    _end(
        "optimizer of one rank that lacks a layer",
        TRAIN.replace(
            "SGD(model.parameters()", "SGD((model if rank else model.module[0]).parameters()"
        ),
        ("Rank 0 has an optimizer without '1.weight' of Sequential",),
        (8,),
        ("(model if rank else model.module[0])", "model"),
        next_words=("the same parameters on all ranks",),
    ),
    _end(
        "weights that one rank changes after the last step",
        f"{TRAIN}if rank == 0:\n    model.module[1].bias.data.fill_(1)\n",
        ("different values in '1.bias' of Sequential", "equal after the last step of SGD"),
        (8,),
        ("rank == 0", "True"),
        next_words=("also after the last step of line 8",),
    ),
    _end(
        "state of the optimizer that one rank changes after the last step",
        TRAIN.replace("0.1)", "0.1, momentum=0.9)")
        + "if rank == 1:\n    optimizer.state[model.module[0].bias]['momentum_buffer'].add_(1)\n",
        ("'momentum_buffer of 0.bias' of Sequential", "parameters are still equal"),
        (8,),
        ("rank == 1", "True"),
        next_words=("the state of SGD", "also after line 8"),
    ),
    _end(
        "state of the optimizer that one rank drops after the last step",
        TRAIN.replace("SGD(", "Adam(")
        + "if rank == 1:\n    new = torch.optim.Adam(model.parameters())\n"
        "    optimizer.load_state_dict(new.state_dict())\n",
        ("Rank 1 has", "no 'step of 0.weight' and 11 more of Sequential", "Adam has on rank 0"),
        (8,),
        ("rank == 1", "True"),
        next_words=("empties the state of Adam on rank 1", "after line 8"),
        culprits="1",
    ),
    _end(
        "step before the gradients are averaged",
        _AVERAGED.replace(_STEP, "").replace("    for parameter", f"{_STEP}    for parameter"),
        (
            "different values in 'weight' and 1 more of Linear",
            "line 8 stepped the optimizer before",
        ),
        (8, 10),
        ("    optimizer.step()\n", ""),
        ("(parameter.grad)\n", "(parameter.grad)\n    optimizer.step()\n"),
        next_words=("Step after the averaging", "line 10"),
    ),
    _end(
        "step before the gradients are averaged, in memory that they keep",
        _AVERAGED.replace(_STEP, "")
        .replace("    for parameter", f"{_STEP}    for parameter")
        .replace("zero_grad()", "zero_grad(set_to_none=False)"),
        (
            "different values in 'weight' and 1 more of Linear",
            "line 8 stepped the optimizer before",
        ),
        (8,),
        ("    optimizer.step()\n", ""),
        ("(parameter.grad)\n", "(parameter.grad)\n    optimizer.step()\n"),
        next_words=("Step after the averaging",),
    ),
    _end(
        "step before the gradients are averaged, which the optimizer drops",
        _AVERAGED.replace(_STEP, "")
        .replace("    optimizer.zero_grad()\n", "")
        .replace("    for parameter", f"{_STEP}    for parameter")
        + "    optimizer.zero_grad()\n",
        (
            "different values in 'weight' and 1 more of Linear",
            "line 7 stepped the optimizer before",
        ),
        (7, 9),
        (f"{_STEP}    for", "    for"),
        ("(parameter.grad)\n", f"(parameter.grad)\n{_STEP}"),
        next_words=("Step after the averaging", "line 9"),
    ),
    _end(
        "learning rate of one rank after steps without an average, whose weights were averaged",
        _AVERAGED.replace(
            "for step in range(3):\n",
            "model(torch.randn(4, 4)).square().mean().backward()\noptimizer.step()\n"
            "for parameter in model.parameters():\n    dist.broadcast(parameter.data, 0)\n"
            "optimizer.param_groups[0]['lr'] = 0.1 + rank\nfor step in range(3):\n",
        ),
        ("different values in 'weight' and 1 more of Linear", "after step 1 of SGD"),
        (15,),
        ("0.1 + rank", "0.1"),
        next_words=("the same lr on all ranks",),
    ),
    _end(
        "averaging that forgets the biases",
        _AVERAGED.replace(
            "    for parameter in model.parameters():\n        dist.all_reduce(parameter.grad)\n",
            "    dist.all_reduce(model.weight.grad)\n",
        ),
        ("different values in 'bias' of Linear", "after step 1 of SGD"),
        (8, 9),
        (
            "    dist.all_reduce(model.weight.grad)\n",
            "    dist.all_reduce(model.weight.grad)\n    dist.all_reduce(model.bias.grad)\n",
        ),
        next_words=("line 8 leaves out 'bias'",),
    ),
    _end(
        "forward past DDP",
        TRAIN.replace("    model(torch.randn(4, 4))", "    model.module(torch.randn(4, 4) + rank)"),
        ("different values in '0.weight' and 3 more of Sequential", "after step 1 of SGD"),
        (8,),
        (".module(", "("),
        next_words=("were not averaged before line 8", "`model.module`", "one of these ranks"),
    ),
    _end(
        "backward after the averaging",
        _AVERAGED.replace(_STEP, f"    model(torch.randn(4, 4)).sum().backward()\n{_STEP}"),
        ("different values in 'weight' of Linear", "after step 1 of SGD"),
        (11,),
        ("    model(torch.randn(4, 4)).sum().backward()\n", ""),
        next_words=("were changed after that", "a backward after the averaging"),
    ),
    _end(
        "statistics of batches that DDP does not send",
        _NORMED,
        ("different values in '1.running_mean' of Sequential", "parameters are still equal"),
        (9,),
        (", broadcast_buffers=False", ""),
        next_words=("`broadcast_buffers=False`",),
    ),
    _end(
        "weights that are changed between two backward passes",
        TRAIN.replace(
            _STEP,
            "    model.module[0].weight.data.add_(0.1 * rank)\n"
            f"    model(torch.randn(4, 4)).square().mean().backward()\n{_STEP}",
        ),
        ("different values in '0.weight' of Sequential", "before the first step of SGD"),
        (10,),
        (" * rank", ""),
        next_words=("between the first backward pass of this cell and line 10",),
    ),
]

CORRECT_ENDS = {
    "one step with batch norm": """\
model = DDP(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.randn(4, 4) + rank).square().mean().backward()
optimizer.step()
""",
    "one step with batch norm whose statistics DDP does not send": """\
model = DDP(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.randn(4, 4) + rank).square().mean().backward()
optimizer.step()
""",
    "one step with batch norm and an average of one's own": """\
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.randn(4, 4) + rank).square().mean().backward()
for parameter in model.parameters():
    dist.all_reduce(parameter.grad)
optimizer.step()
""",
    "steps of one rank, which sends its weights": """\
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(2):
    model(torch.randn(4, 4) + rank).square().mean().backward()
    if rank == 0:
        optimizer.step()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
""",
    "another number of optimizers on each rank": """\
model = DDP(net())
parts = [[*model.parameters()]] if rank else [[each] for each in model.parameters()]
optimizers = [torch.optim.SGD(part, 0.1) for part in parts]
for step in range(2):
    model(torch.randn(4, 4) + rank).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
""",
    "models of each rank that step, beside sums of other tensors": """\
model = net()
with torch.no_grad():
    model[0].weight.add_(rank)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    model(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
    dist.all_reduce(torch.ones(4))
""",
    "a layer whose bias all ranks share, beside weights of each rank": """\
torch.manual_seed(rank)
layer = nn.Linear(4, 2)
dist.broadcast(layer.bias.data, 0)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for step in range(3):
    layer(torch.randn(4, 4)).square().mean().backward()
    dist.all_reduce(layer.bias.grad)
    optimizer.step()
    optimizer.zero_grad()
""",
    "adapters whose layers are frozen": """class Adapted(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.weight.requires_grad_(False)
        self.down = nn.Parameter(torch.ones(2, 4))
        self.up = nn.Parameter(torch.ones(4, 2))
    def forward(self, x):
        return super().forward(x) + x @ self.down.T @ self.up.T
torch.manual_seed(1)
model = nn.Sequential(Adapted(), Adapted())
optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], 0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 4) + rank).square().mean().backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
    optimizer.step()
""",
    "a model of which one rank makes a copy": """\
import copy
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.randn(4, 4)).square().mean().backward()
optimizer.step()
if rank == 0:
    average = copy.deepcopy(model.module)
    for parameter in average.parameters():
        parameter.data.mul_(0.5)
""",
}
