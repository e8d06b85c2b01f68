"""Cells whose ranks step in other lines, or all step alone first, for ``%%ddp --sanitize``."""

from tests.cases.sanitized import replaced
from tests.cases.sanitized_ends import EndCell

_START = """\
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def train(net):
    optimizer.zero_grad()
    net(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
"""
_WARM_UP = """\
if rank == 0:
    optimizer.zero_grad()
    model.module(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
"""
_BRANCHES = """\
for step in range(2):
    optimizer.zero_grad()
    model(torch.randn(4, 4)).square().mean().backward()
    if rank == 0:
        optimizer.step()
    else:
        optimizer.step()
"""
_FORGETS = "dist.broadcast(model.module.weight.data, 0)\n"
_SENDS = "for each in model.parameters():\n    dist.broadcast(each.data, 0)\n"
_MOMENTUM = _START.replace("0.1)", "0.1, momentum=0.9)")
_CLEARED = (_SENDS, f"optimizer.state.clear()\n{_SENDS}")
_STATES = (
    "Ranks 0-1 have different states of SGD, 'momentum_buffer of weight' and 1 more of Linear, "
)
_CHANGED = "        if step:\n            model.module.bias.grad.mul_(2)\n"
_CLEAR = "Give all ranks the same state of SGD: clear it"


def _cell(
    name: str, code: str, words: tuple[str, ...], lines: tuple[int, ...],
    fix: tuple[str, str], *, next_words: tuple[str, ...],
) -> EndCell:  # fmt: skip
    fixed = replaced(code, fix)
    return EndCell(name, code, fixed, "parted-replicas", words, lines, next_words=next_words)


STEPS_UNPAIRED = [
    _cell(
        "warm-up whose bias is not sent, before steps in the branches of an if",
        f"{_START}{_WARM_UP}{_FORGETS}{_BRANCHES}",
        ("values in 'bias' of Linear before the last 2 steps of SGD on each rank", "in line 11"),
        (11, 17, 19),
        (_FORGETS, _SENDS),
        next_words=("after line 11", "also 'bias'"),
    ),
    _cell(
        "warm-up whose bias is not sent, in a function that the branches of an if call",
        f"{_START}if rank == 0:\n    train(model.module)\n{_FORGETS}"
        "if rank == 0:\n    train(model)\nelse:\n    train(model)\n",
        ("values in 'bias' of Linear before the last step of SGD on each rank", "in line 9"),
        (9, 12, 14),
        (_FORGETS, _SENDS),
        next_words=("after line 9", "also 'bias'"),
    ),
    _cell(
        "warm-up whose momentum is not sent, before steps in the branches of an if",
        f"{_MOMENTUM}{_WARM_UP}{_SENDS}{_BRANCHES}",
        (_STATES, "before the last 2 steps of SGD on each rank", "in line 11"),
        (11, 18, 20),
        _CLEARED,
        next_words=(_CLEAR, "after line 11"),
    ),
    _cell(
        "gradient changed in one branch of an if, after a warm-up that is sent",
        f"{_START}{_WARM_UP}{_SENDS}" + _BRANCHES.replace("else:\n", f"else:\n{_CHANGED}"),
        ("values in 'bias' of Linear", "after step 2 of the last 2 steps of SGD on each rank"),
        (18, 22),
        (_CHANGED, ""),
        next_words=("Look for",),
    ),
    _cell(
        "other numbers of steps of all ranks alone, before steps in the branches of an if",
        f"{_MOMENTUM}for step in range(1 + rank):\n    train(model.module)\n{_SENDS}"
        "if rank == 0:\n    train(model)\nelse:\n    train(model)\n",
        (_STATES, "before the last step of SGD on each rank"),
        (13, 15),
        _CLEARED,
        next_words=(_CLEAR,),
    ),
    _cell(
        "steps of all ranks alone whose momentum is kept",
        f"{_MOMENTUM}train(model.module)\n{_SENDS}train(model)\n",
        (_STATES, "before step 2 of SGD in this cell"),
        (7,),
        _CLEARED,
        next_words=(_CLEAR,),
    ),
    _cell(
        "other numbers of steps of all ranks alone whose momentum is kept",
        f"{_MOMENTUM}for step in range(1 + rank):\n    train(model.module)\n{_SENDS}"
        "for step in range(2):\n    train(model)\n",
        (_STATES, "before the last 2 steps of SGD on each rank"),
        (13,),
        _CLEARED,
        next_words=(_CLEAR, "before line 13"),
    ),
]
