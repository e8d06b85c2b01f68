"""Programs that must give the same results on stock and on traced process groups: one table.

A program is a cell that leaves something comparable in ``result`` on each rank: numbers, texts,
tensors, and lists of such. `PRELUDE` is run once in each pool before; `CLEAN_UP` after each
program, so that none sees the groups of another.
"""

from dataclasses import dataclass

import pytest

PRELUDE = '''\
import itertools, os, re, sys, threading, time, warnings
from datetime import timedelta
import torch.distributed.distributed_c10d as c10d
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

def plainly(value):
    """As something that `repr` shows in full, and in the same way for equal values."""
    if hasattr(value, "full_tensor"):
        return ("DTensor", str(value.placements), plainly(value.full_tensor()))
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), list(value.shape), value.detach().tolist())
    if isinstance(value, dict):
        return {key: plainly(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plainly(item) for item in value]
    return value

def attempt(function, *args, **kwargs):
    """What it gives, or the type and the first line of its error."""
    try:
        return plainly(function(*args, **kwargs))
    except Exception as error:
        line = (str(error).splitlines() or [""])[0]
        noise = r"\\[[0-9a-f.:]*\\]:\\d+(\\$\\d+)?|0x[0-9a-f]+|[FEW]\\d{4} [\\d:.]+"
        line = re.sub(noise, "<>", line)
        line = re.sub(r"keys: /nbddp/[^ ]*//", "keys: /", line)  # where the pool keeps its stores
        return f"{type(error).__name__}: {line}"

def range_of(*shape, dtype=torch.float32):
    """Other numbers on each rank."""
    count = 1
    for size in shape:
        count *= size
    return (torch.arange(count) + 1 + 10 * rank).reshape(shape).to(dtype)

def batches(count, size=4, features=8):
    """The same on every call, others on each rank."""
    generator = torch.Generator().manual_seed(100 + rank)
    return [torch.randn(size, features, generator=generator) for _ in range(count)]

def net(features=8):
    """The same on every rank."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(features, 16), nn.Tanh(), nn.Linear(16, features))

def train(model, optimizer=None, data=None, loss_of=lambda output: output.square().mean()):
    """Losses of a few steps, and the sum of the weights after them."""
    optimizer = optimizer or torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for batch in data or batches(3):
        optimizer.zero_grad()
        loss = loss_of(model(batch))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, weights(model)

def weights(model):
    return [plainly(parameter) for parameter in model.parameters()]

def shared_path(name):
    """A path that is the same on all ranks, and was never used before."""
    made = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(made)
    return os.path.join(made[0], name)

import tempfile
'''

CLEAN_UP = """\
for group in list(c10d._world.pg_map):
    if group is not dist.group.WORLD:
        dist.destroy_process_group(group)
result = "the program has left no result"
"""


@dataclass(frozen=True)
class Program:
    """A cell whose ``result`` does not depend on the kind of group."""

    name: str
    code: str
    ranks: int = 2
    #: Limit in seconds; a program that hangs must not hold up the others.
    timeout_s: float = 40.0
    #: Before, torch compiles calls of stock groups only.
    since: str = "2.11"
    #: Whether it takes many seconds, and is left to `make test-full`.
    is_long: bool = False
    #: Whether its own processes load torch: seconds, also where nothing of it is tested.
    loads_torch: bool = False


def parametrize(programs: list[Program]) -> pytest.MarkDecorator:
    """A test for each program, those with equally many ranks together.

    Those of four ranks, which need two pools more, are left to `make test-full`.
    """
    ordered = sorted(programs, key=lambda program: program.ranks)
    cases = [
        pytest.param(
            program,
            id=program.name,
            marks=[pytest.mark.full] if program.is_long or program.ranks > 3 else [],
        )
        for program in ordered
    ]
    return pytest.mark.parametrize("program", cases)


def parametrize_mode(programs: list[Program], *, each: int = 1) -> pytest.MarkDecorator:
    """The same for cells in a certain mode, in which a program must give what it gives without.

    Args:
        programs: of two ranks.
        each: `make test-full` runs each second program, or each third, and so on; the rest is
            left to `make test-slow`, as is a program whose processes load torch.
    """
    cases = [
        pytest.param(
            program,
            id=program.name,
            marks=[pytest.mark.slow] if number % each or program.loads_torch else [],
        )
        for number, program in enumerate(programs)
    ]
    return pytest.mark.parametrize("program", cases)
