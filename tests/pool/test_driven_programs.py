"""Programs that a user drives with ``%%ddp --step`` end as those that run alone, bit by bit."""

import itertools
from collections.abc import Iterator

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.controller.prompts.step_commands import Tell, parse
from tests.cases.driven import COLLECTIVES, GROUPS, HANDLES, MESSAGES, Driven
from tests.cases.driven_training import FUNCTIONS, SHARDED, TRAINING
from tests.cases.fidelity import CLEAN_UP, PRELUDE
from tests.conftest import make_pool
from tests.support.views import RecordingView, run_cell

DRIVEN = [*COLLECTIVES, *MESSAGES, *HANDLES, *GROUPS, *FUNCTIONS, *TRAINING, *SHARDED]


@pytest.fixture(scope="module")
def driven(own_temporary_folder: object) -> Iterator[Pool]:
    pool = make_pool(2, env={"NBDDP_PRELOAD": "torch._dynamo"})
    run_cell(pool, PRELUDE)
    yield pool
    pool.stop()


@pytest.fixture
def no_leaks() -> None:
    """The pool lives from one test to the next; other tests look for what they leave behind."""


def run(pool: Pool, program: Driven, lines: Iterator[str] | None) -> tuple[RecordingView, str]:
    """Run a program to its end; gives also its results in full."""
    view = run_cell(
        pool,
        f"torch.manual_seed(rank)\n{program.code}",
        timeout=60,
        step=lines is not None,
        answers=lines or (),
    )
    found = repr(pool.pull("plainly([result])"))
    run_cell(pool, CLEAN_UP)
    return view, found


#: `make test` runs each sixth, `make test-full` each second one; the rest is left to
#: `make test-slow`.
_CASES = [
    pytest.param(
        program,
        id=program.name,
        marks=[pytest.mark.slow] if number % 2 else [pytest.mark.full] if number % 6 else [],
    )
    for number, program in enumerate(DRIVEN)
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("program", _CASES)
def test_a_driven_program_ends_as_one_that_nobody_disturbs(driven: Pool, program: Driven):
    _, undisturbed = run(driven, program, None)
    assert "has left no result" not in undisturbed
    view, found = run(driven, program, itertools.chain(program.lines, itertools.repeat("continue")))
    assert found == undisturbed
    assert len(view.asked) >= len(program.lines)


def test_a_value_that_the_user_changes_makes_a_difference(driven: Pool):
    program = Driven(
        "changed", "run x += 2**-20", "x = torch.ones(2)\ndist.all_reduce(x)\nresult = x"
    )
    _, undisturbed = run(driven, program, None)
    _, found = run(driven, program, itertools.chain(program.lines, itertools.repeat("continue")))
    assert found != undisturbed


def test_there_are_thirty_of_them_and_more():
    assert len({program.name for program in DRIVEN}) >= 30


@pytest.mark.parametrize("program", DRIVEN, ids=lambda program: program.name)
def test_each_line_of_a_script_is_a_command(program: Driven):
    assert [line for line in program.lines if isinstance(parse(line, 2, {}), Tell)] == []
