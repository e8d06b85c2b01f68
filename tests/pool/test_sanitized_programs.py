"""Programs give the same, bit by bit, in a cell with ``--sanitize``."""

from collections.abc import Iterator

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.controller.state import VerdictReached
from tests.cases.fidelity import CLEAN_UP, PRELUDE, Program, parametrize_mode
from tests.cases.fidelity_collectives import COLLECTIVES
from tests.cases.fidelity_sharded import SHARDED
from tests.cases.fidelity_training import TRAINING
from tests.cases.fidelity_works import WORKS
from tests.conftest import make_pool
from tests.support.views import run_cell

#: A second `init_rpc` in a process waits forever, also without the option.
NOT_TWICE = {"remote calls"}
#: Programs that drop handles of asynchronous operations.
TOLD = {"barriers", "works that are dropped, and overlap"}
PROGRAMS = [
    program
    for program in [*COLLECTIVES, *WORKS, *TRAINING, *SHARDED]
    if program.ranks == 2 and not program.is_long and program.name not in NOT_TWICE
]


@pytest.fixture(scope="module")
def sanitized(own_temporary_folder: object) -> Iterator[Pool]:
    pool = make_pool(2, env={"NBDDP_PRELOAD": "torch._dynamo"})
    run_cell(pool, PRELUDE)
    yield pool
    pool.stop()


@pytest.fixture
def no_leaks() -> None:
    """The pool lives from one test to the next; other tests look for what they leave behind."""


@pytest.mark.full
@pytest.mark.timeout(180)
@parametrize_mode(PROGRAMS, each=2)
def test_a_program_gives_the_same(sanitized: Pool, program: Program):
    results = []
    for sanitize in (False, True):
        view = run_cell(
            sanitized,
            f"torch.manual_seed(rank)\n{program.code}",
            timeout=program.timeout_s,
            sanitize=sanitize,
        )
        results.append(sanitized.pull("plainly([result])"))
        run_cell(sanitized, CLEAN_UP, timeout=program.timeout_s)
        reports = [each.report for each in view.events if isinstance(each, VerdictReached)]
        found = [finding.headline for report in reports for finding in report.findings]
        assert bool(found) is (sanitize and program.name in TOLD), found
    assert results[0] == results[1]
