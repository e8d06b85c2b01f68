"""``%%ddp --step``: ranks stop before each operation, on real ranks."""

import itertools
import re
import time
from collections.abc import Callable, Iterator

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import (
    BadOptionError,
    CellError,
    CellInterruptedError,
    DeadlockError,
)
from nbddp.wire.values.tensor_preview import MIME
from tests.cases.fidelity import CLEAN_UP, PRELUDE, Program, parametrize_mode
from tests.cases.fidelity_collectives import COLLECTIVES
from tests.cases.fidelity_sharded import SHARDED
from tests.cases.fidelity_training import TRAINING
from tests.cases.fidelity_works import WORKS
from tests.conftest import make_pool
from tests.support.views import RecordingView, run_cell

SUM = "x = torch.full((2,), float(rank + 1))\ndist.all_reduce(x)\nprint(x.tolist())"


def tables(view: RecordingView) -> list[list[str]]:
    """The tables that were shown, as rows with one space between columns."""
    found = [[" ".join(row.split()) for row in text.splitlines()] for text in view.told]
    return [table for table in found if table[0].startswith(("rank ", "ranks "))]


# --- programs ------------------------------------------------------------------------------------

#: A second `init_rpc` in a process waits forever, also without steps.
NOT_TWICE = {"remote calls"}
PROGRAMS = [
    program
    for program in [*COLLECTIVES, *WORKS, *TRAINING, *SHARDED]
    if program.ranks == 2 and not program.is_long and program.name not in NOT_TWICE
]


@pytest.fixture(scope="module")
def stepped(own_temporary_folder: object) -> Iterator[Pool]:
    preload = {"NBDDP_PRELOAD": "torch._dynamo"}
    pool = make_pool(2, env=preload)
    run_cell(pool, PRELUDE)
    yield pool
    pool.stop()


@pytest.fixture
def no_leaks() -> None:
    """The pool lives from one test to the next; other tests look for what they leave behind."""


@pytest.mark.full
@pytest.mark.timeout(180)
@parametrize_mode(PROGRAMS, each=2)
def test_a_program_gives_the_same_step_by_step(stepped: Pool, program: Program):
    results = []
    for step in (False, True):
        view = run_cell(
            stepped,
            f"torch.manual_seed(rank)\n{program.code}",
            timeout=2 * program.timeout_s,
            step=step,
            answers=itertools.repeat("step"),
        )
        assert view.error is None
        results.append(stepped.pull("plainly([result])"))
        run_cell(stepped, CLEAN_UP, timeout=program.timeout_s)
    assert results[0] == results[1]


def test_there_are_enough_of_them():
    assert len(PROGRAMS) >= 30


# --- commands ------------------------------------------------------------------------------------


def test_a_table_comes_before_the_operation_is_issued(pool: Pool):
    view = run_cell(pool, SUM, step=True, answers=["p x.tolist()", "step"])
    (table,) = tables(view)
    assert len(table) == 1
    assert table[0].startswith("ranks 0-1 before all_reduce #")
    assert table[0].endswith(" of float32[2] with SUM cell [1], line 2: `dist.all_reduce(x)`")
    assert view.texts() == {0: "[1.0, 1.0]\n[3.0, 3.0]\n", 1: "[2.0, 2.0]\n[3.0, 3.0]\n"}
    assert [request.rank for request in view.asked] == [0, 0]


def test_an_operation_of_a_library_is_named_by_what_the_library_does(pool: Pool):
    code = """\
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
loss = model(torch.ones(1, 2)).sum()
loss.backward()
"""
    view = run_cell(pool, code, step=True, answers=["step 3", "step"])
    first, last = ([re.sub(r"#\d+", "#", row) for row in table] for table in tables(view))
    line = "cell [1], line 1: `model = torch.nn.parallel.DistributedDataParallel"
    assert first[0].startswith(
        f"ranks 0-1 before the check of parameter shapes (all_gather #) of int64[1] {line}"
    )
    assert last == [
        "ranks 0-1 before gradient averaging (all_reduce #) of float32[3] with SUM "
        "cell [1], line 3: `loss.backward()`"
    ]


def test_ranks_at_different_lines_have_different_rows(pool: Pool):
    code = "x = torch.ones(1)\nif rank:\n    dist.broadcast(x, 1)\nelse:\n    dist.barrier()"
    view = run_cell(pool, code, step=True, answers=["step"], check=False)
    assert [row.split(" #")[0] for row in tables(view)[0]] == [
        "rank 0 before barrier",
        "rank 1 before broadcast",
    ]
    assert isinstance(view.error, CellError)  # the mismatch is seen as in every cell


def test_ranks_in_different_iterations_have_different_rows(pool: Pool):
    code = """\
for step in range(3):
    if rank == 1 and step == 0:
        continue
    dist.barrier()
if rank == 1:
    dist.barrier()
"""
    view = run_cell(pool, code, step=True, answers=["step"] * 3)
    first = [re.sub(r"#\d+", "#", row) for row in tables(view)[0]]
    assert first == [
        "rank 0 before barrier # at step 0 cell [1], line 4: `dist.barrier()`",
        "rank 1 before barrier # at step 1 cell [1], line 4: `dist.barrier()`",
    ]


def test_a_rank_that_has_ended_the_cell_is_in_the_table(pool: Pool):
    view = run_cell(
        pool, "if rank == 0:\n    dist.barrier()", step=True, answers=["quit"], check=False
    )
    assert tables(view)[0][1] == "rank 1 has finished the cell"


def test_one_rank_goes_ahead_and_waits_for_the_other(pool: Pool):
    view = run_cell(pool, SUM, step=True, answers=["step -r 0", "p x.tolist()", "step"])
    _, after = tables(view)
    assert after[0].startswith("rank 0 waits in all_reduce #")
    assert after[1].startswith("rank 1 before all_reduce #")
    assert view.texts() == {0: "[3.0, 3.0]\n", 1: "[2.0, 2.0]\n[3.0, 3.0]\n"}


def test_continue_lets_a_rank_go_that_waits_for_others(pool: Pool):
    code = "for i in range(3):\n    dist.barrier()\nprint('end')"
    view = run_cell(pool, code, step=True, answers=["step -r 0", "c"])
    assert [request.rank for request in view.asked] == [0, 1]
    assert view.texts() == {0: "end\n", 1: "end\n"}


def test_several_steps_at_once(pool: Pool):
    code = "for i in range(5):\n    dist.barrier()\nprint(i)"
    view = run_cell(pool, code, step=True, answers=["step 3", "p i", "", "continue"])
    assert len(tables(view)) == 3  # before the first, the fourth and the fifth
    assert view.texts() == {0: "3\n4\n", 1: "3\n4\n"}


def test_code_runs_in_the_frame_of_the_user(pool: Pool):
    code = """\
def scaled(value, factor):
    dist.all_reduce(value)
    return value * factor

print(scaled(torch.ones(1), 10).item())
"""
    view = run_cell(
        pool, code, step=True, answers=["p factor + rank", "run value += 1", "where", "c"]
    )
    assert view.text(1).splitlines() == [
        "11",
        "cell [1], line 2, in scaled: dist.all_reduce(value)",
        "cell [1], line 5: print(scaled(torch.ones(1), 10).item())",
        "40.0",
    ]


def test_commands_look_from_another_line_after_up(pool: Pool):
    code = """\
def scaled(value, factor):
    dist.all_reduce(value)
    return value * factor

def total(start):
    return scaled(torch.ones(1) * start, 10)

result = total(2)
print(result.item())
"""
    looks = ["up", "p start", "run start = 5", "p start", "diff start", "w", "up 9", "d 9"]
    answers = [*looks, "p value", "up", "retry", "p factor", "c"]
    view = run_cell(pool, code, step=True, answers=answers)
    assert view.text(1).splitlines() == [
        "> cell [1], line 6, in total: return scaled(torch.ones(1) * start, 10)",
        "2",
        "5",
        "  cell [1], line 2, in scaled: dist.all_reduce(value)",
        "> cell [1], line 6, in total: return scaled(torch.ones(1) * start, 10)",
        "  cell [1], line 8: result = total(2)",
        "> cell [1], line 8: result = total(2) (outermost line)",
        "> cell [1], line 2, in scaled: dist.all_reduce(value) (innermost line)",
        "tensor([2.])",
        "> cell [1], line 6, in total: return scaled(torch.ones(1) * start, 10)",
        "10",
        "40.0",
    ]
    assert view.differences[0].is_equal


def test_the_tensor_before_and_after_the_step(pool: Pool):
    code = """\
def total(value):
    copy = value * 2
    dist.all_reduce(copy)
    return copy.sum()
for step in range(2):
    total(torch.ones(2) * (rank + 1))
parts = [torch.zeros(1) for _ in range(2)]
dist.all_gather(parts, torch.ones(1) + rank)
dist.barrier()
"""
    looks = [
        "p before",
        "step",
        "p before, after",
        "diff after",
        "step",
        "p after.tolist()",
        "step",
    ]
    answers = [*looks, "p torch.cat(before + after).tolist()", "show after", "c"]
    view = run_cell(pool, code, step=True, answers=answers)
    assert view.text(1).splitlines() == [
        "NameError: name 'before' is not defined: no operation with a tensor was stepped over in "
        "this cell so far. Next: step",
        "(tensor([4., 4.]), tensor([6., 6.]))",
        "[6.0, 6.0]",
        "[0.0, 0.0, 1.0, 2.0]",
    ]
    assert view.differences[0].is_equal
    shown = view.displays(1)[0][MIME]["tensors"]
    assert [tensor["name"] for tensor in shown] == ["after[0]", "after[1]"]


def test_none_is_printed_where_a_value_is_asked_for(pool: Pool):
    code = "nothing = None\nkept = []\ndist.barrier()"
    looks = ["p nothing", "print kept.append(1)", "run kept.append(2)", "run nothing", "p kept"]
    view = run_cell(pool, code, step=True, answers=[*looks, "c"])
    assert view.text(0).splitlines() == ["None", "None", "[1, 2]"]


def test_an_error_of_the_code_is_a_line(pool: Pool):
    view = run_cell(pool, SUM, step=True, answers=["p unknown", "p dist.barrier()", "c"])
    first, second, *_ = view.text(0).splitlines()
    assert first == "NameError: name 'unknown' is not defined"
    assert second.startswith(
        "nbddp.errors.CollectiveRefusedError: barrier was called at the prompt"
    )


def test_diff_compares_a_value_of_stopped_ranks(pool: Pool):
    code = """\
def scaled(value, factor):
    dist.all_reduce(value)
    return value * factor

print(scaled(torch.arange(4.0) * (rank == 0), 10).tolist())
"""
    view = run_cell(pool, code, step=True, answers=["diff value", "diff factor", "p 1", "c"])
    differing, equal = view.differences
    assert not differing.is_equal
    assert equal.is_equal
    assert view.texts() == dict.fromkeys((0, 1), "1\n[0.0, 10.0, 20.0, 30.0]\n")


def test_diff_of_ranks_that_are_not_stopped_is_refused(pool: Pool):
    view = run_cell(pool, SUM, step=True, answers=["step -r 0", "diff x", "diff x -r 0", "c"])
    assert view.told[-1] == "rank 0 is not stopped; rank 1 is"
    assert [d.ranks.ranks for d in view.differences] == [(1,)]


def test_the_debugger_of_one_rank_comes_back(pool: Pool):
    view = run_cell(pool, SUM, step=True, answers=["rank 1", "p x.tolist()", "q", "step"])
    assert [(request.rank, request.stop is None) for request in view.asked] == [
        (0, False),
        (1, True),
        (1, True),
        (0, False),
    ]
    assert "[2.0, 2.0]\n" in view.text(1)
    assert view.text(0) == "[3.0, 3.0]\n"


@pytest.mark.parametrize("command", ["n", "s", "r", "c", "until 9", "jump 1", "b 3", "run"])
def test_the_debugger_of_one_rank_lets_it_not_go_on(pool: Pool, command: str):
    code = f"{SUM}\nprint('end')"
    view = run_cell(pool, code, step=True, answers=["rank 1", command, "q", "rank 0", "q", "c"])
    assert [(request.rank, request.stop is None) for request in view.asked] == [
        (0, False),
        (1, True),
        (1, True),
        (0, False),
        (0, True),
        (0, False),
    ]
    is_break = command.startswith("b")
    assert ("does not go on from this debugger" in view.text(1)) is not is_break
    assert ("sets no breakpoints" in view.text(1)) is is_break
    assert view.text(1).endswith("\n[3.0, 3.0]\nend\n")


def test_a_command_for_all_ranks_is_explained_in_the_debugger_of_one(pool: Pool):
    answers = ["rank 1", "waits", "diff x", "trace = 3", "trace", "q", "c"]
    view = run_cell(pool, SUM, step=True, answers=answers)
    of_all = "is a command of (step), the prompt for all ranks. Next: q comes back to it"
    assert view.text(1).count(of_all) == 2
    assert f"waits {of_all}" in view.text(1)
    assert "NameError" not in view.text(1)
    assert "3\n" in view.text(1)


def test_help_in_the_debugger_of_one_rank_lists_no_command_that_it_refuses(pool: Pool):
    view = run_cell(pool, SUM, step=True, answers=["rank 1", "help", "q", "c"])
    listed = view.text(1).split()
    assert {"p", "up", "where", "q"} <= {*listed}
    assert {"n", "c", "run", "jump", "debug"}.isdisjoint(listed)


def test_an_interrupt_in_the_debugger_of_one_rank_ends_the_cell(pool: Pool):
    view = run_cell(pool, SUM, step=True, answers=["rank 1", KeyboardInterrupt()], check=False)
    assert isinstance(view.error, CellInterruptedError)
    run_cell(pool, SUM, step=True, answers=["step"])


def test_quit_ends_the_cell_also_after_a_step_in_the_debugger(pool: Pool):
    code = f"breakpoint()\n{SUM}\nprint('end')"
    view = run_cell(pool, code, step=True, answers=[*["all n"] * 3, "quit"], check=False)
    assert isinstance(view.error, CellInterruptedError)
    assert view.asked[-1].stop is not None
    run_cell(pool, SUM, step=True, answers=["step"])


def test_a_rank_that_has_raised_is_shown_so(pool: Pool):
    code = "dist.barrier()\nif rank == 1:\n    raise ValueError('bad')\ndist.barrier()"
    view = run_cell(pool, code, step=True, answers=["step", "quit"], check=False)
    assert tables(view)[-1][1].startswith("rank 1 raised ValueError: bad, after barrier #")


def test_the_size_of_an_object_is_not_skipped(pool: Pool):
    code = "objects = [rank]\ndist.broadcast_object_list(objects, 0)\nprint(objects)"
    view = run_cell(pool, code, step=True, answers=["skip", "c"])
    assert re.match(
        r"broadcast_object_list \(broadcast #\d+\) cannot be skipped: torch", view.told[-1]
    )
    assert view.texts() == {0: "[0]\n", 1: "[0]\n"}


def test_a_card_names_the_operation_that_was_skipped(pool: Pool):
    view = run_cell(pool, SUM, step=True, answers=["skip -r 1", "step"], check=False)
    assert isinstance(view.error, DeadlockError)
    assert view.outcome is not None
    (text,) = view.outcome.left_out
    assert re.fullmatch(r"rank 1 left out all_reduce #\d+ at the prompt, cell \[1\], line 2", text)
    report = view.outcome.report
    assert report is not None
    assert report.left_out == (text,)
    assert report.findings[0].next_step.startswith("Nothing, if the operation that was skipped")
    run_cell(pool, SUM)


def test_the_user_ends_the_cell(pool: Pool):
    view = run_cell(pool, f"kept = rank\n{SUM}", step=True, answers=["quit"], check=False)
    assert isinstance(view.error, CellInterruptedError)
    assert view.texts() == {}
    assert pool.pull("kept") == [0, 1]


def test_a_cell_that_the_user_has_ended_stops_no_more(pool: Pool):
    """What its ``finally`` calls is done."""
    code = "try:\n    dist.barrier()\nfinally:\n    dist.barrier()\n    print('end')"
    view = run_cell(pool, code, step=True, answers=["quit", "quit"], check=False)
    assert len(view.asked) == 1
    assert isinstance(view.error, CellInterruptedError)
    assert "still inside" not in str(view.error)
    assert view.texts() == {0: "end\n", 1: "end\n"}


@pytest.mark.parametrize(
    "handler", ["except BaseException:\n        pass", "finally:\n        continue"]
)
def test_a_cell_that_catches_the_quit_is_told_so(pool: Pool, handler: str):
    code = f"for i in range(2):\n    try:\n        dist.barrier()\n    {handler}\nprint('end')"
    view = run_cell(pool, code, step=True, answers=["quit"])
    assert view.texts() == {0: "end\n", 1: "end\n"}
    (text,) = (each for each in view.told if "ran on" in each)
    assert text.startswith(
        "ranks 0-1 ran on after the interrupt: it raised KeyboardInterrupt in cell [1], line 3: "
        "`dist.barrier()`, and the cell's code caught it. Next: catch Exception, which"
    )


def test_a_rank_that_had_ended_the_cell_has_caught_no_quit(pool: Pool):
    code = "if rank == 0:\n    dist.barrier()"
    view = run_cell(pool, code, step=True, answers=["quit"], check=False)
    assert not any("ran on" in each for each in view.told)


def test_an_interrupt_at_the_prompt_ends_the_cell(pool: Pool):
    view = run_cell(pool, SUM, step=True, answers=[KeyboardInterrupt()], check=False)
    assert isinstance(view.error, CellInterruptedError)


def test_an_interrupt_in_a_backward_pass_ends_the_cell(pool: Pool):
    code = """\
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(torch.nn.Linear(2, 1))
model(torch.ones(1, 2)).sum().backward()
"""
    answers: list[str | BaseException] = [*["step"] * 3, KeyboardInterrupt()]
    view = run_cell(pool, code, step=True, answers=answers, check=False)
    assert isinstance(view.error, CellInterruptedError)
    assert "line 3" in tables(view)[-1][0]


def test_where_no_user_can_be_asked_the_cell_goes_on(pool: Pool):
    view = run_cell(pool, SUM, step=True, answers=[EOFError("no user")])
    assert view.texts() == {0: "[3.0, 3.0]\n", 1: "[3.0, 3.0]\n"}


def test_a_deadlock_is_proven_as_in_every_cell(pool: Pool):
    code = "if rank == 0:\n    dist.barrier()"
    view = run_cell(pool, code, step=True, answers=["step"], check=False)
    assert isinstance(view.error, DeadlockError)


def test_later_cells_do_not_stop(pool: Pool):
    run_cell(pool, SUM, step=True, answers=["step"])
    assert run_cell(pool, SUM).asked == []


def test_a_long_look_is_no_hang(pool: Pool):
    """The ranks are at a prompt: no notice accuses them, and no timeout of theirs runs."""

    def slow() -> Iterator[str]:
        time.sleep(2)  # longer than the notices of ranks that wait
        yield "step -r 0"
        time.sleep(2)
        yield "step"

    view = run_cell(pool, SUM, step=True, answers=slow())
    assert view.texts() == {0: "[3.0, 3.0]\n", 1: "[3.0, 3.0]\n"}
    assert view.error is None


def test_a_plain_pool_says_that_it_can_neither_step_nor_sanitize_nor_have_faults(
    fresh_pool: Callable[..., Pool],
):
    pool = fresh_pool(2, plain=True)
    with pytest.raises(BadOptionError, match="plain"):
        run_cell(pool, SUM, step=True)
    with pytest.raises(BadOptionError, match="plain"):
        run_cell(pool, SUM, sanitize=True)
    with pytest.raises(BadOptionError, match="--fault strikes at operations that are traced"):
        run_cell(pool, SUM, faults="rank 0: kill")
