"""Cells whose answer and error are to be on one screen of a projector, as in the course."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ProjectedCell:
    """A faulty cell for four ranks."""

    name: str
    code: str
    answer: str  #: a text that is seen with nothing unfolded


CELLS = [
    ProjectedCell(
        "continue on one rank",
        """\
%%ddp
for step in range(5):
    loss = torch.tensor(float(rank + step))
    if rank == 2 and step == 1:
        continue
    dist.all_reduce(loss)
    if rank == 0:
        mean = loss.item() / world_size""",
        "before `if rank == 2 and step == 1:` (line 4)",
    ),
    ProjectedCell(
        "another shape on one rank",
        """\
%%ddp
grad = torch.ones(3)
if rank == 1:
    grad = grad.mean()
dist.all_reduce(grad)
print(grad)""",
        "rank 1 changed `grad` in line 4",
    ),
    ProjectedCell(
        "pairs that receive first",
        """\
%%ddp
peer = rank ^ 1
mine = torch.full((4,), float(rank))
theirs = torch.empty(4)
dist.recv(theirs, src=peer)
dist.send(mine, dst=peer)
print(theirs)""",
        "Let the even ranks send first",
    ),
    ProjectedCell(
        "a ring that receives from the wrong rank",
        """\
%%ddp
mine = torch.full((4,), float(rank))
theirs = torch.empty(4)
work = dist.isend(mine, dst=(rank + 1) % world_size)
dist.recv(theirs, src=(rank + 1) % world_size)
work.wait()""",
        "`src=(rank - 1) % world_size`",
    ),
    ProjectedCell(
        "a rank that is killed",
        """\
%%ddp
import os, signal
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()""",
        "%ddp catchup",
    ),
]
