"""The cells that run a loop, and those that do not."""

import pytest

from nbddp.controller.catch_up import PastCell
from nbddp.controller.catch_up.loops import Loops
from nbddp.wire.rank_set import RankSet

DEFINED = """
def train(steps):
    for step in range(steps):
        model(step)

def twice(x):
    return once(once(x))

def epochs(n):
    return train(n)

def count(n):
    return count(n - 1) if n else 0

class Trainer:
    def fit(self):
        while self.is_open:
            train(1)

    def one(self):
        return model(1)
"""


def cell(code: str, number: int = 1) -> PastCell:
    return PastCell(number, code, 1, RankSet.of([0, 1]), is_ok=True)


@pytest.mark.parametrize(
    ("code", "runs"),
    {
        "for x in y:\n    step(x)": True,
        "if a:\n    while b:\n        pass": True,
        "loss = train(3)": True,
        "loss = epochs(3)": True,
        "%time loss = train(3)": True,
        "trainer = Trainer()\nloss = trainer.fit()": True,
        "losses = [dist.all_reduce(x) for x in y]": True,
        "losses = [twice(x) for x in y]": True,
        "loss = trainer.one()": False,
        "loss = twice(3)": False,
        "loss = count(3)": False,
        "loss = other.train(3)": False,
        "sizes = [p.numel() for p in net.parameters()]\ndist.barrier()": False,
        "def f():\n    for x in y:\n        train(x)": False,
        "f = lambda: train(3)": False,
    }.items(),
)
def test_loops_that_run_with_a_cell(code: str, *, runs: bool):
    loops = Loops([cell(DEFINED), cell(code, 2)])
    assert loops.runs_loop(cell(code, 2)) is runs


def test_the_last_function_of_a_name_counts():
    loops = Loops([cell(DEFINED), cell("def train(steps):\n    return model(steps)", 2)])
    assert not loops.runs_loop(cell("train(3)"))
