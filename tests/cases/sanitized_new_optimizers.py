"""Cells in which several optimizers step the same parameters, for ``%%ddp --sanitize``."""

from tests.cases.sanitized import WrongCell, replaced

_START = """\
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(0)
net = DDP(torch.nn.Linear(4, 1))
def sgd(momentum=0.9):
    return torch.optim.SGD(net.parameters(), 0.1, momentum)
def adam():
    return torch.optim.Adam(net.parameters(), 0.1)
def fit(steps):
    for _ in range(steps):
        opt.zero_grad()
        net(torch.randn(4, 4) + rank).square().mean().backward()
        opt.step()
"""
_ANEW = f"""\
{_START}opt = sgd()
for step in range(4):
    if rank == 0 and step == 2:
        opt = sgd()
    fit(1)
"""
#: The same, with gradients that the code averages.
_AVERAGED = replaced(
    _ANEW,
    ("net = DDP(torch.nn.Linear(4, 1))", "net = torch.nn.Linear(4, 1)"),
    (
        "        opt.step()\n",
        "        for each in net.parameters():\n"
        "            dist.all_reduce(each.grad, dist.ReduceOp.AVG)\n"
        "        opt.step()\n",
    ),
)
_PHASES = f"""\
{_START}warm, main = sgd(0.5), sgd()
for step in range(4):
    opt = warm if step < (1 if rank else 2) else main
    fit(1)
"""


def _wrong(
    name: str, code: str, words: tuple[str, ...], lines: tuple[int, ...], fix: tuple[str, str]
) -> WrongCell:
    return WrongCell(name, code, replaced(code, fix), "parted-replicas", words, lines)


NEW_OPTIMIZERS = [
    _wrong(
        "new optimizer on one rank",
        _ANEW,
        ("after step 3 of SGD", "rank 0 steps with another optimizer since its step 3"),
        (12, 17),
        ("rank == 0 and ", ""),
    ),
    _wrong(
        "new optimizer on one rank, after an average by hand",
        _AVERAGED,
        ("after step 3 of SGD", "rank 0 steps with another optimizer since its step 3"),
        (14, 19),
        ("rank == 0 and ", ""),
    ),
    _wrong(
        "new optimizer of another class on one rank",
        _ANEW.replace("        opt = sgd()", "        opt = adam()"),
        ("after step 3 of its optimizer", "rank 0 steps with another optimizer since its step 3"),
        (12, 17),
        ("rank == 0 and ", ""),
    ),
    _wrong(
        "second optimizer that one rank takes earlier",
        _PHASES,
        ("after step 2 of SGD", "rank 1 steps with another optimizer since its step 2"),
        (12, 16),
        ("(1 if rank else 2)", "2"),
    ),
    _wrong(
        "state that one rank loads into a new optimizer",
        f"""\
{_START}opt = adam()
fit(2)
state = opt.state_dict()
opt = adam()
if rank == 0:
    opt.load_state_dict(state)
fit(2)
""",
        ("different states of Adam, 'step of weight'", "before step 3 of Adam in this cell"),
        (12,),
        ("if rank == 0:", "if True:"),
    ),
]

CORRECT_NEW_OPTIMIZERS = {
    "optimizer that is made again and loaded from one rank": f"""\
{_START}opt = adam()
fit(2)
box = [opt.state_dict() if rank == 0 else None]
dist.broadcast_object_list(box, 0)
opt = adam()
opt.load_state_dict(box[0])
fit(2)
""",
    "optimizer of a part of the parameters, loaded from one rank": f"""\
{_START}opt = adam()
fit(2)
box = [opt.state_dict() if rank == 0 else None]
dist.broadcast_object_list(box, 0)
opt = torch.optim.Adam([net.module.weight], 0.1)
if box[0] is not None:
    state = box[0]["state"][0]
    opt.load_state_dict({{**opt.state_dict(), "state": {{0: state}}}})
fit(2)
""",
    "optimizer for each step": f"""\
{_START}for step in range(4):
    opt = sgd()
    fit(1)
""",
    "optimizer for each step, after an average by hand": replaced(
        _AVERAGED, ("rank == 0 and step == 2", "True")
    ),
    "new optimizer without a state on one rank": _ANEW.replace("momentum=0.9", "momentum=0.0"),
    "two optimizers in turn": f"""\
{_START}both = sgd(), adam()
for step in range(4):
    opt = both[step % 2]
    fit(1)
""",
}
