"""A cell that hangs or mismatches runs on real ranks after the change that its card suggests."""

from dataclasses import dataclass

import pytest

from nbddp.controller.diagnosis import CodeChange
from nbddp.controller.pool.pool import Pool
from tests.support.changes import apply_change
from tests.support.views import RecordingView, run_cell

_LIMIT_S = 30.0


@dataclass(frozen=True)
class FaultyCell:
    """A cell with one fault."""

    name: str
    code: str
    marks: tuple[str, ...]  #: lines that the change adds
    printed: tuple[str, str] = ("", "")  #: by each rank, after the change
    before: str = ""  #: an earlier cell
    in_cell: int = 2  #: the cell that is changed


CELLS = [
    FaultyCell(
        name="a call in an if, with its comment",
        code="""\
x = torch.ones(1)
if rank == 0:
    # the sum of all
    dist.all_reduce(x)
    print(x.item())
""",
        marks=("# the sum of all", "dist.all_reduce(x)"),
        printed=("2.0\n", ""),
    ),
    FaultyCell(
        name="a call that one rank skips by an exception that is caught",
        code="""\
x = torch.zeros(1)
for step in range(3):
    try:
        y = torch.ones(1) * (1 // int((rank, step) != (1, 1)))
        dist.all_reduce(y)
    except ZeroDivisionError as error:
        print(error)
    x += y
print(x.item())
""",
        marks=("    if ok:", "        dist.all_reduce(y)"),
        printed=("5.0\n", "integer division or modulo by zero\n6.0\n"),
    ),
    FaultyCell(
        name="a call that one rank skips by continue, in the middle of a loop",
        code="""\
batches = [1.0, 2.0, 3.0, 4.0]
for step, batch in enumerate(batches):
    loss = torch.tensor(batch)
    if rank == 1 and step == 1:
        continue
    # the sum of all
    dist.all_reduce(loss)
print(loss.item())
""",
        marks=("    # the sum of all", "    dist.all_reduce(loss)"),
        printed=("8.0\n", "8.0\n"),
    ),
    FaultyCell(
        name="a call that one rank skips by continue, in the last iteration",
        code="""\
for step in range(3):
    loss = torch.ones(1) + step
    if rank == 1 and step == 2:
        continue
    dist.all_reduce(loss)
    if rank == 0:
        print(loss.item())
""",
        marks=("    dist.all_reduce(loss)",),
        printed=("2.0\n4.0\n6.0\n", ""),
    ),
    FaultyCell(
        name="a call that one rank skips for its loss",
        code="""\
for step in range(4):
    loss = torch.tensor(float(rank + step))
    if rank == 1 and step == 1:
        loss = loss / 0 * 0
    if torch.isnan(loss):
        continue
    dist.all_reduce(loss)
    print(loss.item())
""",
        marks=(
            "    skip = torch.tensor(int(torch.isnan(loss)), device=loss.device)",
            "    dist.all_reduce(skip, op=dist.ReduceOp.MAX)",
            "    if skip:",
        ),
        printed=("1.0\n5.0\n7.0\n", "1.0\n5.0\n7.0\n"),
    ),
    FaultyCell(
        name="a backward that one rank skips for its loss",
        before="""\
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(torch.nn.Linear(2, 1))
""",
        code="""\
for step in range(3):
    loss = model(torch.ones(1, 2) * (step + 2 * rank)).sum() * 0
    if step + 2 * rank > 3:
        continue
    loss.backward()
print(step)
""",
        marks=(
            "    skip = torch.tensor(int(step + 2 * rank > 3), device=loss.device)",
            "    dist.all_reduce(skip, op=dist.ReduceOp.MAX)",
            "    if skip:",
        ),
        printed=("2\n", "2\n"),
    ),
    FaultyCell(
        name="a barrier in a function that only rank 0 calls, and that saves",
        code="""\
saved = []
def save(step):
    saved.append(step)
    dist.barrier()
for step in range(2):
    x = torch.ones(1)
    dist.all_reduce(x)
    if rank == 0:
        save(step)
print(saved, x.item())
""",
        marks=("    dist.barrier()",),
        printed=("[0, 1] 2.0\n", "[] 2.0\n"),
    ),
    FaultyCell(
        name="a list with fewer batches on one rank",
        code="""\
batches = [torch.ones(1)] * (3 + rank)
for step, batch in enumerate(batches):
    dist.all_reduce(batch)
print(step)
""",
        marks=("dist.all_reduce(shortest, op=dist.ReduceOp.MIN)",),
        printed=("2\n", "2\n"),
    ),
    FaultyCell(
        name="two branches that receive first",
        code="""\
x = torch.full((1,), float(rank)); y = torch.empty(1)
if rank == 0:
    dist.recv(y, src=1)
    dist.send(x, dst=1)
else:
    dist.recv(y, src=0)
    dist.send(x, dst=0)
print(y.item())
""",
        marks=("    dist.send(x, dst=1)",),
        printed=("1.0\n", "0.0\n"),
    ),
    FaultyCell(
        name="helpers that receive first",
        code="""\
def get(other):
    y = torch.empty(1)
    dist.recv(y, other)
    return y
def put(x, other):
    dist.send(x, other)
y = get(1 - rank)
put(torch.full((1,), float(rank)), 1 - rank)
print(y.item())
""",
        marks=("if rank % 2 == 0:", "    y = get(1 - rank)"),
        printed=("1.0\n", "0.0\n"),
    ),
    FaultyCell(
        name="a wait before the message of the other way",
        code="""\
x = torch.full((1,), float(rank)); y = torch.empty(1)
req = dist.irecv(y, src=1 - rank)
req.wait()
dist.send(x, dst=1 - rank)
print(y.item())
""",
        marks=("req.wait()",),
        printed=("1.0\n", "0.0\n"),
    ),
    FaultyCell(
        name="a call behind the return of one rank",
        code="""\
def save():
    if rank:
        return
    dist.barrier()
save()
print("saved")
""",
        marks=("    dist.barrier()",),
        printed=("saved\n", "saved\n"),
    ),
    FaultyCell(
        name="two calls in one if",
        code="""\
x, count = torch.ones(2)
if rank == 0:
    dist.all_reduce(x)
    # and the other one
    dist.all_reduce(count)
print(x + count)
""",
        marks=("dist.all_reduce(x)", "# and the other one", "dist.all_reduce(count)"),
        printed=("tensor(4.)\n", "tensor(4.)\n"),
    ),
    FaultyCell(
        name="a broadcast, after which the sender goes on alone",
        code="""\
x = torch.full((2,), 5.0 - rank)
if rank == 0:
    dist.broadcast(x, src=0)
    dist.barrier()
print(x.tolist())
""",
        marks=("dist.broadcast(x, src=0)", "dist.barrier()"),
        printed=("[5.0, 5.0]\n", "[5.0, 5.0]\n"),
    ),
    FaultyCell(
        name="all receive first",
        code="""\
got, mine = torch.zeros(1), torch.ones(1) * rank
dist.recv(got, src=1 - rank)
# mine
dist.send(mine, dst=1 - rank)
print(got.item())
""",
        marks=("if rank % 2 == 0:", "    # mine", "else:"),
        printed=("1.0\n", "0.0\n"),
    ),
    FaultyCell(
        name="a ring of one tensor, in which all send first",
        code="""\
x = torch.ones(1 << 20) * rank
dist.send(x, dst=(rank + 1) % world_size)
dist.recv(x, src=(rank - 1) % world_size)
print(x[0].item())
""",
        marks=("sent = x.clone()", "if rank % 2 == 0:", "else:"),
        printed=("1.0\n", "0.0\n"),
    ),
    FaultyCell(
        name="a loader of an earlier cell, with a last batch on one rank",
        before="""\
from torch.utils.data import DataLoader
size = 4
mine = torch.arange(9.0)[rank::world_size]
loader = DataLoader(
    mine,
    batch_size=size,  # small
)
""",
        code="""\
for step, batch in enumerate(loader):
    total = batch.sum()
    dist.all_reduce(total)
print(step, total.item())
""",
        marks=("    batch_size=size, drop_last=True,  # small",),
        printed=("0 28.0\n", "0 28.0\n"),
        in_cell=1,
    ),
    FaultyCell(
        name="a loader in the head of a loop, of data with known lengths",
        code="""\
seen = 0
for batch in torch.utils.data.DataLoader(torch.ones(8 + 2 * rank, 3), batch_size=4):
    dist.all_reduce(batch)
    seen += 1
print(seen)
""",
        marks=(
            "for batch in torch.utils.data.DataLoader("
            "torch.ones(8 + 2 * rank, 3), batch_size=4, drop_last=True):",
        ),
        printed=("2\n", "2\n"),
    ),
    FaultyCell(
        name="DDP, with more batches on one rank",
        before="net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))",
        code="""\
data = torch.utils.data.DataLoader(torch.ones(8 + 8 * rank, 4), batch_size=4)
for epoch in range(2):
    for batch in data:
        # a step
        net(batch).sum().backward()
print(len(data))
""",
        marks=(
            "    with net.join():",
            "        for batch in data:",
            "            # a step",
            "            net(batch).sum().backward()",
        ),
        printed=("2\n", "4\n"),
    ),
    FaultyCell(
        name="two models of DDP, with more batches on one rank",
        before="""\
from torch.nn.parallel import DistributedDataParallel as DDP
critic = DDP(torch.nn.Linear(4, 3))
net = DDP(torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.BatchNorm1d(1)))
opt = torch.optim.SGD([*net.parameters(), *critic.parameters()], lr=0.1)
""",
        code="""\
data = torch.utils.data.DataLoader(torch.ones(8 + 12 * rank, 4), batch_size=4)
for batch in data:
    opt.zero_grad()
    loss = net(batch).square().mean()
    loss.backward()
    critic(batch).sum().backward()
    opt.step()
print(len(data))
""",
        marks=(
            "from torch.distributed.algorithms import Join",
            "with Join([net, critic]):",
            "    for batch in data:",
        ),
        printed=("2\n", "5\n"),
    ),
    FaultyCell(
        name="all_gather of different lengths",
        code="""\
mine = torch.full((2 + rank, 2), rank)
# all of them
found = [torch.empty_like(mine) for _ in range(world_size)]
dist.all_gather(found, mine)
print([each.shape[0] for each in found], found[1].sum().item())
""",
        marks=("longest = torch.tensor(len(mine), device=mine.device)",),
        printed=("[3, 3] 6\n", "[3, 3] 6\n"),
    ),
    FaultyCell(
        name="gather of the last batch",
        code="""\
for batch in torch.utils.data.DataLoader(torch.arange(8 - rank), batch_size=4):
    found = [torch.zeros_like(batch) for _ in range(world_size)] if rank == 0 else None
    dist.gather(batch, found, dst=0)
print(None if found is None else found[1].tolist())
""",
        marks=("    batch = torch.cat([batch, batch.new_zeros(int(longest) - len(batch))])",),
        printed=("[4, 5, 6, 0]\n", "None\n"),
    ),
]


def run(pool: Pool, code: str, number: int) -> RecordingView:
    return run_cell(pool, code, timeout=_LIMIT_S, check=False, execution_count=number)


def change_of(view: RecordingView) -> CodeChange:
    assert view.outcome is not None
    assert view.outcome.report is not None, view.error
    change = view.outcome.report.findings[0].change
    assert change is not None, view.outcome.report.findings[0]
    return change


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_a_changed_cell_runs(cell: FaultyCell, pool: Pool):
    texts = {1: cell.before, 2: cell.code}
    for number in filter(texts.get, texts):
        view = run(pool, texts[number], number)
    assert view.error is not None
    change = change_of(view)
    assert change.cell == cell.in_cell
    added = [line.source for line in change.lines if line.change == "added"]
    assert set(cell.marks) <= set(added), added

    texts[cell.in_cell] = apply_change(texts[cell.in_cell], change.lines)
    for number in filter(texts.get, texts):
        view = run(pool, texts[number], number)
        assert view.error is None, view.error
    assert (view.text(0), view.text(1)) == cell.printed


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param(3, marks=pytest.mark.fresh_ranks(3)),
        pytest.param(4, marks=[pytest.mark.fresh_ranks(4), pytest.mark.full]),
    ],
)
def test_an_exchange_with_all_other_ranks_ends_after_its_change(pool: Pool, ranks: int):
    code = """\
w = torch.ones(2) * rank
for peer in range(world_size):
    if peer != rank:
        dist.send(w, peer)
        dist.recv(w, peer)
"""
    view = run(pool, code, 2)
    changed = apply_change(code, change_of(view).lines)
    assert "if rank < peer:" in changed
    assert run(pool, changed, 2).error is None
    assert len(pool.all_ranks) == ranks
