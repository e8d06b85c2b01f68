"""Faults on purpose before each operation of a training step, and slow ranks in many programs.

A death or a missing call at each place must free the others, and the card must name the fault.
Ranks that are slow or stopped must not change what a program computes.
"""

from collections.abc import Iterator

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.controller.state import RunOutcome
from tests.cases.fidelity import CLEAN_UP, PRELUDE, Program, parametrize_mode
from tests.cases.fidelity_collectives import COLLECTIVES
from tests.cases.fidelity_sharded import SHARDED
from tests.cases.fidelity_training import TRAINING
from tests.cases.fidelity_works import WORKS
from tests.conftest import make_pool
from tests.support.views import RecordingView, run_cell

PREPARE = """\
from torch import nn
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
for _ in range(2):  # the second step sorts the buckets
    model(torch.ones(1, 4)).sum().backward()
kept = torch.full((1000,), float(rank))
"""
#: It has six operations on each rank.
STEP = """\
loss = torch.zeros(1)
dist.broadcast(loss, 0)
for i in range(2):
    model.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    dist.all_reduce(loss)
dist.barrier()
"""
OPERATIONS = range(1, 7)


@pytest.fixture(scope="module")
def trained(own_temporary_folder: object) -> Iterator[Pool]:
    pool = make_pool(2, env={"NBDDP_PRELOAD": "torch._dynamo"})
    run_cell(pool, PRELUDE + PREPARE)
    yield pool
    pool.stop()


@pytest.fixture
def no_leaks() -> None:
    """The pool lives from one test to the next; other tests look for what they leave behind."""


def struck(pool: Pool, faults: str) -> tuple[RecordingView, RunOutcome]:
    """Run a step in which one fault strikes; the report names it, and rank 0 keeps its values."""
    view = run_cell(pool, STEP, faults=faults, check=False, timeout=60)
    assert view.error is not None
    assert len(view.struck()) == 1, view.struck()
    outcome = view.outcome
    assert outcome is not None
    assert not outcome.timed_out
    assert list(outcome.injected) == view.struck()
    assert str(view.error).count(f"fault on purpose: {view.struck()[0]}") == 1
    assert pool.pull("kept.eq(0).all().item()", ranks=0)
    return view, outcome


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", OPERATIONS)
def test_a_missing_call_at_each_place_is_explained_by_the_fault(trained: Pool, number: int):
    _, outcome = struck(trained, f"rank 1: skip operation #{number}")
    assert outcome.report is not None
    assert outcome.report.injected == outcome.injected
    for finding in outcome.report.findings:
        assert finding.change is None
        assert "fault on purpose" in finding.next_step
    run_cell(trained, STEP, timeout=60)
    assert trained.pull("model.module.weight.grad.isfinite().all().item()") == [True, True]


@pytest.mark.full
@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", OPERATIONS)
def test_a_death_at_each_place_leaves_the_survivor_and_a_pool(trained: Pool, number: int):
    _, outcome = struck(trained, f"rank 1: kill before operation #{number}")
    assert outcome.ranks("exited").ranks == (1,)
    assert outcome.report is not None
    assert outcome.report.findings[0].suspicions == ()
    run_cell(trained, PRELUDE + PREPARE, timeout=60)  # of the fresh rank
    run_cell(trained, STEP, timeout=60)


# --- slow ranks ----------------------------------------------------------------------------------

#: A second `init_rpc` in a process waits forever, also without faults.
NOT_TWICE = {"remote calls"}
PROGRAMS = [
    program
    for program in [*COLLECTIVES, *WORKS, *TRAINING, *SHARDED]
    if program.ranks == 2 and not program.is_long and program.name not in NOT_TWICE
]
#: The last one never strikes, so all lines of the program are traced.
SLOW = """\
random: seed=5, rate=0.1, acts=delay+stop; link 0-1: 1 ms; rank 1: delay 20 ms;
ranks 0-1: kill at no_such_variable 1"""


@pytest.mark.full
@pytest.mark.timeout(180)
@parametrize_mode(PROGRAMS, each=2)
def test_slow_ranks_compute_the_same(trained: Pool, program: Program):
    results = []
    for faults in ("", SLOW):
        code = f"torch.manual_seed(rank)\n{program.code}"
        view = run_cell(trained, code, timeout=4 * program.timeout_s, faults=faults)
        assert bool(faults) == bool(view.struck())
        results.append(trained.pull("plainly([result])"))
        run_cell(trained, CLEAN_UP, timeout=program.timeout_s)
    assert results[0] == results[1]


def test_a_deadlock_beside_a_delay_keeps_its_next_step(pool: Pool):
    code = "a = torch.ones(2)\ndist.all_reduce(a)\nif rank == 0:\n    dist.barrier()"
    for fault, is_kept in (("delay 10 ms", True), ("flip a bit", False)):
        where = "before the next all_reduce" if is_kept else "in the next all_reduce"
        view = run_cell(pool, code, faults=f"rank 1: {fault} {where}", check=False)
        assert view.outcome is not None
        assert view.outcome.report is not None
        (finding,) = view.outcome.report.findings
        assert finding.kind == "missing-rank"
        assert ("a fault on purpose" not in finding.next_step) == is_kept
