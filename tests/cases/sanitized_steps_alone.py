"""Cells in which one rank makes steps alone, such as a warm-up, for ``%%ddp --sanitize``."""

from tests.cases.sanitized import replaced
from tests.cases.sanitized_ends import EndCell


def _alone(
    name: str, code: str, words: tuple[str, ...], lines: tuple[int, ...],
    *fixes: tuple[str, str], next_words: tuple[str, ...] = (),
) -> EndCell:  # fmt: skip
    fixed = replaced(code, *fixes)
    return EndCell(name, code, fixed, "parted-replicas", words, lines, next_words=next_words)


_START = """\
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
"""
_TRAIN = """\
for step in range(2):
    optimizer.zero_grad()
    model(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
"""
_WARM_UP = """\
if rank == 0:
    model.module(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
"""
_FORGETS = "dist.broadcast(model.module.weight.data, 0)\n"
_SENDS = "for each in model.parameters():\n    dist.broadcast(each.data, 0)\n"
_MOMENTUM = "SGD(model.parameters(), 0.1, momentum=0.9)"
_CLEARED = (_SENDS, f"optimizer.state.clear()\n{_SENDS}")
_FIRST = "before the first step of SGD that ranks 0-1 have in common"
_IN_STATE = (
    "Ranks 0-1 have different states of SGD, 'momentum_buffer of weight' and 1 more of Linear, "
)
_HELPER = """\
def train(count):
    for step in range(count):
        optimizer.zero_grad()
        model(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
def alone():
    model.module(torch.randn(4, 4)).square().mean().backward()
    step_now()
def step_now():
    optimizer.step()
def both():
    model(torch.randn(4, 4)).square().mean().backward()
    step_now()
"""

STEPS_ALONE = [
    _alone(
        "warm-up of one rank whose bias is not sent",
        f"{_START}{_WARM_UP}{_FORGETS}{_TRAIN}",
        ("Ranks 0-1 have different values in 'bias' of", _FIRST, "rank 0 alone", "in line 6"),
        (6, 11),
        (_FORGETS, _SENDS),
        next_words=("after line 6", "`broadcast` each parameter, also 'bias'"),
    ),
    _alone(
        "warm-up of one rank after all were made equal, whose bias is not sent",
        f"{_START}{_SENDS}{_WARM_UP}{_FORGETS}{_TRAIN}",
        ("Ranks 0-1 have different values in 'bias' of", _FIRST, "rank 0 alone", "in line 8"),
        (8, 13),
        (_FORGETS, _SENDS),
        next_words=("after line 8", "`broadcast` each parameter, also 'bias'"),
    ),
    _alone(
        "warm-up of one rank with an optimizer of its own",
        f"{_START}{_WARM_UP}{_FORGETS}{_TRAIN}".replace(
            "if rank == 0:\n", "own = torch.optim.Adam(model.parameters(), 0.1)\nif rank == 0:\n"
        ).replace("    optimizer.step()\nd", "    own.step()\nd"),
        ("different values in 'bias' of", _FIRST, "rank 0 alone stepped Adam", "in line 7"),
        (7, 12),
        (_FORGETS, _SENDS),
        next_words=("after line 7", "also 'bias'"),
    ),
    _alone(
        "step of one rank in the middle, whose bias is not sent",
        f"{_START}{_TRAIN}{_WARM_UP}{_FORGETS}{_TRAIN}",
        ("in 'bias' of Linear before step 3 of SGD", "rank 0 alone", "in line 10"),
        (10, 15),
        (_FORGETS, _SENDS),
        next_words=("after line 10",),
    ),
    _alone(
        "warm-up of one rank in a function that all call later",
        f"{_START}{_HELPER}if rank == 0:\n    alone()\n{_FORGETS}both()\n",
        ("in 'bias' of Linear", _FIRST, "rank 0 alone stepped SGD before that, in line 18"),
        (18, 20),
        (_FORGETS, _SENDS),
        next_words=("after line 18",),
    ),
    _alone(
        "warm-up of one rank, before an average by hand",
        """\
torch.manual_seed(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
torch.manual_seed(rank)
if rank == 0:
    model(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
dist.broadcast(model.weight.data, 0)
for step in range(2):
    optimizer.zero_grad()
    model(torch.randn(4, 4)).square().mean().backward()
    for each in model.parameters():
        dist.all_reduce(each.grad)
    optimizer.step()
""",
        ("in 'bias' of Linear before the first step of SGD", "rank 0 alone", "in line 7"),
        (7, 14),
        ("dist.broadcast(model.weight.data, 0)\n", _SENDS),
        next_words=("after line 7",),
    ),
    _alone(
        "warm-up of one rank whose momentum is not sent",
        f"{_START}{_WARM_UP}{_SENDS}{_TRAIN}".replace("SGD(model.parameters(), 0.1)", _MOMENTUM),
        (_IN_STATE + _FIRST, "rank 0 alone", "in line 6"),
        (6, 12),
        _CLEARED,
        next_words=("`optimizer.state.clear()`", "or make a new optimizer, after line 6"),
    ),
    _alone(
        "warm-up of one rank whose state of Adam is not sent",
        f"{_START}{_WARM_UP}{_SENDS}{_TRAIN}".replace("SGD", "Adam"),
        ("different states of Adam, 'step of weight' and 5 more of Linear", "in line 6"),
        (6, 12),
        _CLEARED,
        next_words=("`optimizer.state.clear()`",),
    ),
    _alone(
        "step of one rank in the middle, whose momentum is not sent",
        f"{_START}{_TRAIN}{_WARM_UP}{_SENDS}{_TRAIN}".replace(
            "SGD(model.parameters(), 0.1)", _MOMENTUM
        ),
        (_IN_STATE + "before step 3 of SGD", "rank 0 alone", "in line 10"),
        (10, 16),
        _CLEARED,
        next_words=("after line 10",),
    ),
    _alone(
        "warm-up of one rank with neither its bias nor its momentum sent",
        f"{_START}{_WARM_UP}{_FORGETS}{_TRAIN}".replace("SGD(model.parameters(), 0.1)", _MOMENTUM),
        ("in 'bias' of Linear", _FIRST, "rank 0 alone", "in line 6"),
        (6, 11),
        (_FORGETS, f"optimizer.state.clear()\n{_SENDS}"),
        next_words=("also 'bias'", "The state of SGD differs, too"),
    ),
    _alone(
        "step of one rank in a loop, whose bias is not sent",
        f"{_START}{_TRAIN.replace('range(2)', 'range(4)')}    if rank == 0 and step == 1:\n"
        "        model.module(torch.randn(4, 4)).square().mean().backward()\n"
        f"        optimizer.step()\n    {_FORGETS}",
        ("in 'bias' of Linear after step 3 of SGD that ranks 0-1 have", "rank 0 alone", "line 10"),
        (7, 10),
        (_FORGETS, _SENDS.replace("\n    dist", "\n        dist")),
        next_words=("Look whether all ranks have the same weights after line 10",),
    ),
    _alone(
        "warm-up of one rank with one of two optimizers, whose state is not sent",
        f"{_START}head = torch.optim.Adam([model.module.bias], 0.1)\n"
        f"{_WARM_UP.replace('optimizer.', 'head.')}{_SENDS}{_TRAIN}    head.step()\n",
        ("different states of Adam, 'step of bias' and 2 more of Linear", "rank 0 alone", "line 7"),
        (7, 14),
        (_SENDS, f"head.state.clear()\n{_SENDS}"),
        next_words=("after line 7",),
    ),
    _alone(
        "backward pass of DDP at different weights, without an update",
        f"{_START}for each in model.parameters():\n    each.data.add_(rank)\n"
        "model(torch.randn(4, 4)).square().mean().backward()\n",
        ("had different values in 'weight' and 1 more of Linear before line 6",),
        (6,),
        ("add_(rank)", "add_(1)"),
        next_words=("`broadcast` each parameter before line 6",),
    ),
]

_BEGIN = """\
model = DDP(nn.Linear(4, 2))
def make():
    return torch.optim.Adam(model.parameters(), 0.1)
optimizer = make()
def train(count, first):
    for step in range(count):
        optimizer.zero_grad()
        first(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
"""

#: They stay silent; see `sanitized_correct`, whose prelude comes before each.
CORRECT_STEPS_ALONE = {
    name: _BEGIN + code
    for name, code in {
        "a warm-up of one rank, whose state is cleared": f"""\
if rank == 0:
    train(2, model.module)
optimizer.state.clear()
{_SENDS}train(2, model)
""",
        "a warm-up of one rank, and a new optimizer": f"""\
if rank == 0:
    train(2, model.module)
optimizer = make()
{_SENDS}train(2, model)
""",
        "a warm-up of one rank, whose state is sent": f"""\
if rank == 0:
    train(2, model.module)
box = [optimizer.state_dict()]
dist.broadcast_object_list(box, 0)
optimizer.load_state_dict(box[0])
{_SENDS}train(2, model)
""",
        "a warm-up of one rank with an optimizer of its own": f"""\
kept, optimizer = optimizer, make()
if rank == 1:
    train(2, model.module)
optimizer = kept
{_SENDS.replace("0)", "1)")}train(2, model)
""",
        "steps of one rank between those of all, whose weights are sent": """\
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for turn in range(3):
    train(2, model)
    if rank == turn % 2:
        train(1, model.module)
    for each in model.parameters():
        dist.broadcast(each.data, turn % 2)
""",
        "a step of one rank in another line, before an average by hand": f"""\
model = nn.Linear(4, 2)
{_SENDS}optimizer = torch.optim.SGD(model.parameters(), 0.1)
if rank == 0:
    train(1, model)
{_SENDS}for step in range(2):
    optimizer.zero_grad()
    model(torch.randn(4, 4)).square().mean().backward()
    for each in model.parameters():
        dist.all_reduce(each.grad)
    optimizer.step()
""",
        "one step of each rank, in lines of its own": """\
if rank == 0:
    train(1, model.module)
else:
    train(1, model.module)
for each in model.parameters():
    dist.all_reduce(each.data)
    each.data /= world_size
optimizer.state.clear()
train(2, model)
""",
    }.items()
}
