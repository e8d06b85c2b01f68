"""Findings quote the statement that has kept ranks from a line."""

import msgspec
import pytest

from nbddp.controller.diagnosis import Finding
from tests.support.looks import CELL, Ranks, missing, only, site

_GENERIC = (
    "Call it on all ranks of the group: look for an `if`, a `break`, or a loop with a different "
    "number of iterations around it."
)


def code(finding: Finding) -> list[str]:
    """The lines of a finding, with the ranks in front."""
    return [f"{line.ranks}|{line.site.line}|{line.site.source}" for line in finding.code]


def test_an_if():
    finding = missing("if rank != 1:\n    dist.all_reduce(x)", {}, 2)
    assert finding.next_step == (
        "Line 2 is inside `if rank != 1:` (line 1): move it out, so that rank 1 runs it, too."
    )
    assert code(finding) == ["|1|if rank != 1:", "0,2|2|    dist.all_reduce(x)"]
    assert finding.to_dict()["code"][1]["ranks"] == [0, 2]
    assert finding.to_dict()["code"][1]["site"]["cell"] == CELL
    assert finding.suspicions == ()


def test_an_if_in_the_same_line():
    finding = missing("if rank != 1: dist.all_reduce(x)", {}, 1)
    assert finding.next_step == (
        "The call in line 1 is inside `if rank != 1:`: move it out, so that rank 1 runs it, too."
    )


def test_a_call_that_needs_a_name_of_its_if_cannot_move_alone():
    code = "if rank == 0:\n    metrics = torch.ones(3)\n    dist.all_reduce(metrics)"
    finding = missing(code, {}, 3)
    assert finding.change is None
    assert finding.next_step == (
        "Line 3 is inside `if rank == 0:` (line 1): let rank 1 run it, too, with all that it needs."
    )


def test_an_else():
    finding = missing("if rank == 1:\n    pass\nelse:\n    dist.all_reduce(x)", {}, 4)
    assert finding.next_step.startswith(
        "Line 4 is inside the `else` of `if rank == 1:` (line 1): move it out"
    )
    assert code(finding) == ["|1|if rank == 1:", "|3|else:", "0,2|4|    dist.all_reduce(x)"]


@pytest.mark.parametrize(
    ("source", "line", "quoted"),
    [
        # The condition that names ranks, and not the innermost one.
        (
            "if rank != 1:\n    if step:\n        dist.all_reduce(x)",
            3,
            "`if rank != 1:` (line 1): move",
        ),
        (
            "if a:\n    if b:\n        dist.all_reduce(x)",
            3,
            "inside `if a:` (line 1) and `if b:` (line 2)",
        ),
        # A condition that is true on the missing rank, too.
        (
            "if rank < 3:\n    if x > 1:\n        dist.all_reduce(x)",
            3,
            "is inside `if x > 1:` (line 2)",
        ),
        (
            "if rank_ok:\n    try:\n        dist.all_reduce(x)\n    except E:\n        pass",
            3,
            "Line 3 is inside `if rank_ok:` (line 1) and `try:` (line 2): let rank 1 run it, too",
        ),
        ("if a:\n    for b in c:\n        dist.all_reduce(x)", 3, "`if a:` (line 1)"),
        ("if a:\n    if is_main_process():\n        dist.all_reduce(x)", 3, "`if is_main"),
    ],
)
def test_the_most_telling_branch_is_quoted(source: str, line: int, quoted: str):
    assert quoted in missing(source, {}, line).next_step


def test_a_branch_that_the_missing_rank_has_entered_is_not_to_blame():
    source = "if rank < 2:\n    dist.all_reduce(x)\n    if x:\n        dist.all_reduce(x)"
    finding = missing(source, {0: [2], 1: [2], 2: [2]}, 4)
    assert finding.next_step == (
        "Line 4 is inside `if x:` (line 3): let all ranks decide alike, or move it out."
    )


def test_a_continue():
    source = "for step in data:\n    if rank == 1:\n        continue\n    dist.all_reduce(x)"
    finding = missing(source, {0: [4], 1: [4], 2: [4]}, 4)
    assert finding.suspicions == (
        "`continue` in line 3, inside `if rank == 1:` (line 2), skips line 4 on rank 1",
    )
    assert finding.next_step == (
        "Call all_reduce before `if rank == 1:` (line 2), whose `continue` skips it, or let all "
        "ranks skip it there."
    )
    assert [line.site.line for line in finding.code] == [1, 2, 3, 4]


def test_a_continue_on_the_line_of_its_condition():
    source = "for step in data:\n    if rank == 1: continue\n    dist.all_reduce(x)"
    finding = missing(source, {0: [3], 1: [3], 2: [3]}, 3)
    assert finding.next_step == (
        "Call all_reduce before line 2, `if rank == 1: continue`, or let all ranks skip it there."
    )


def test_a_return():
    source = "def f():\n    if rank == 1: return\n    dist.all_reduce(x)"
    finding = missing(source, {}, 3)
    assert finding.suspicions == ("line 2, `if rank == 1: return`, skips line 3 on rank 1",)
    assert finding.next_step == (
        "Call all_reduce before line 2, `if rank == 1: return`, or let all ranks skip it there."
    )


def test_a_suppressed_exception_is_seen_without_its_with():
    source = (
        "for x in data:\n    with contextlib.suppress(KeyError):\n        f(x)\n"
        "        dist.all_reduce(x)"
    )
    finding = missing(source, {0: [4], 1: [4], 2: [4]}, 4)
    assert "Take that `with` away to see that exception" in finding.next_step


def test_a_loop_with_fewer_iterations():
    source = "for batch in data:\n    dist.all_reduce(x)"
    finding = missing(source, {0: [2, 2], 1: [2, 2], 2: [2, 2]}, 2)
    assert finding.suspicions == (
        "`for batch in data:` (line 1) had fewer iterations on rank 1, as if the data is split "
        "unevenly: line 2 has called all_reduce 2 times on rank 1, 3 times on ranks 0,2",
    )
    assert finding.next_step == (
        "Give every rank the same number of iterations of `for batch in data:` (line 1), for "
        "example the smallest number of all ranks, by all_reduce with ReduceOp.MIN."
    )


@pytest.mark.parametrize("more", ["", ", drop_last=True"])
def test_the_smallest_number_of_batches_is_advised_for_a_data_loader(more: str):
    """Without incomplete batches the numbers may still differ."""
    source = (
        f"loader = DataLoader(load(), 4{more})\nfor batch in loader:\n    dist.all_reduce(batch)"
    )
    finding = missing(source, {0: [3, 3], 1: [3, 3], 2: [3, 3]}, 3)
    assert finding.next_step.endswith(
        ", for example the smallest `len(loader)` of all ranks, by all_reduce with ReduceOp.MIN."
    )


def test_join_is_offered_for_a_backward_only():
    source = "for batch in data:\n    model(batch).sum().backward()"
    finding = missing(source, {0: [2, 2], 1: [2, 2], 2: [2, 2]}, 2)
    assert finding.next_step.endswith(
        "by all_reduce with ReduceOp.MIN, or use `torch.distributed.algorithms.Join`."
    )


def test_join_allows_numbers_of_iterations_that_differ():
    source = "net = DDP(net)\nfor batch in data:\n    net(batch).sum().backward()"
    finding = missing(source, {0: [3, 3], 1: [3, 3], 2: [3, 3]}, 3)
    assert finding.next_step == (
        "Give every rank the same number of iterations of `for batch in data:` (line 2), or let "
        "`with net.join():` allow different ones."
    )


def test_an_exception_in_a_loop():
    source = (
        "for x in y:\n    try:\n        dist.all_reduce(x)\n    except ValueError:\n        pass"
    )
    finding = missing(source, {0: [3], 1: [3], 2: [3]}, 3)
    assert finding.suspicions == (
        "`except ValueError:` (line 4) has swallowed an exception, which skipped line 3 on rank 1: "
        "line 3 has called all_reduce 1 time on rank 1, 2 times on ranks 0,2",
    )
    assert finding.next_step == (
        "Look at `except ValueError:` (line 4): perhaps it swallows an exception of rank 1, which "
        "then skips line 3, `dist.all_reduce(x)`. Put `raise` first in its body to see that "
        "exception; all ranks must make the call, or none."
    )
    assert [line.site.line for line in finding.code] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("handler", "is_handled"),
    [
        ("except Exception:\n        pass", True),
        ("except:\n        continue", True),
        ("except (OSError, RuntimeError) as error:\n        print(error)", True),
        ("except ValueError:\n        pass", False),
        ("except Exception:\n        raise", False),
    ],
)
def test_an_except_that_takes_the_error_of_freed_ranks_leaves_the_cell_without_one(
    handler: str, is_handled: bool
):
    source = f"for x in y:\n    try:\n        dist.all_reduce(x)\n    {handler}"
    finding = missing(source, {0: [3], 1: [3], 2: [3]}, 3)
    assert (finding.is_handled, finding.has_error_below) == (is_handled, not is_handled)


def test_an_exception_that_is_suppressed():
    source = "for x in y:\n    with suppress(ValueError):\n        dist.all_reduce(x)"
    finding = missing(source, {0: [3], 1: [3], 2: [3]}, 3)
    assert finding.next_step.startswith(
        "Look at `with suppress(ValueError):` (line 2): perhaps it swallows an exception of rank 1"
    )


def test_several_handlers_are_all_named():
    source = (
        "for x in y:\n    try:\n        dist.all_reduce(x)\n    except ValueError:\n        pass\n"
        "    except (KeyError, OSError) as error:\n        print(error)"
    )
    finding = missing(source, {0: [3], 1: [3], 2: [3]}, 3)
    assert finding.next_step.startswith(
        "Look at `except ValueError:` (line 4) or `except (KeyError, OSError) as error:` (line 6): "
    )


def test_a_condition_outside_of_a_loop_that_has_run_is_not_to_blame():
    source = "if rank < 2:\n    for batch in data:\n        dist.all_reduce(x)"
    finding = missing(source, {0: [3], 1: [3], 2: [3]}, 3)
    assert "`for batch in data:`" in finding.next_step


def test_a_condition_in_a_loop():
    source = "for step in data:\n    if rank != 1 or step:\n        dist.all_reduce(x)"
    finding = missing(source, {0: [3], 1: [3], 2: [3]}, 3)
    assert finding.next_step.startswith("Line 3 is inside `if rank != 1 or step:` (line 2)")


def test_the_caller_of_a_function():
    pool = Ranks(2)
    pool.code = {CELL: "def mean(x):\n    dist.all_reduce(x)", 7: "if rank == 0:\n    mean(x)"}
    caller = msgspec.structs.replace(site(2, "mean(x)"), cell=7)
    record = pool[0].blocked(line=2)
    pool[0].waits(record, stack=(site(2, "dist.all_reduce(x)", function="mean"), caller))
    pool[1].finished()
    finding = only(pool)
    assert finding.next_step.startswith("Line 2, `mean(x)`, is inside `if rank == 0:` (line 1)")
    assert code(finding) == ["|1|if rank == 0:", "0|2|    mean(x)", "0|2|    dist.all_reduce(x)"]
    assert [line.site.cell for line in finding.code] == [7, 7, CELL]


_STEP = "def step(x):\n    dist.all_reduce(x)"


@pytest.mark.parametrize(
    ("source", "line", "words"),
    [
        # The function has run before: from this line, or from another one.
        (
            "if ready:\n    for batch in data:\n        step(x)",
            3,
            "iterations of `for batch in data",
        ),
        ("if rank >= 0:\n    for batch in data:\n        step(x)", 3, "iterations of `for batch"),
        (
            "for x in y:\n    if not rank:\n        step(x)",
            3,
            "is inside `if not rank:` (line 2): move",
        ),
        ("if ready:\n    step(x)", 2, "Call it on all ranks of the group"),
        (
            "step(x)\nif not rank:\n    step(x)",
            3,
            "Line 3, `step(x)`, is inside `if not rank:` (line 2)",
        ),
    ],
)
def test_the_caller_of_a_function_that_has_run_before(source: str, line: int, words: str):
    pool = Ranks(2)
    pool.code = {CELL: _STEP, 7: source}
    caller = msgspec.structs.replace(site(line, "step(x)"), cell=7)
    for state in pool:
        state.done(line=2)
    record = pool[0].blocked(line=2)
    pool[0].waits(record, stack=(site(2, "dist.all_reduce(x)", function="step"), caller))
    pool[1].finished()
    assert words in only(pool).next_step


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('if __name__ == "__main__":\n    dist.all_reduce(x)', 2),
        ("", 2),
        ("a()\ndist.all_reduce(x)", 2),
        ("with a:\n    dist.all_reduce(x)", 2),
        ("if a\n    dist.all_reduce(x)", 2),
        ("if a:\n    pass\ndist.all_reduce(x)", 3),
    ],
)
def test_nothing_is_quoted_that_does_not_explain(source: str, line: int):
    finding = missing(source, {}, line)
    assert finding.next_step == _GENERIC
    assert finding.code == ()


def test_calls_at_different_lines_are_told_apart():
    source = "if rank == 0:\n    dist.all_reduce(x)\nif rank == 1:\n    dist.all_reduce(x)"
    pool = Ranks(4)
    pool.code[CELL] = source
    pool[0].blocked(line=2)
    pool[1].blocked(line=4)
    pool[2].finished()
    pool[3].finished()
    finding = only(pool)
    assert finding.next_step == (
        "Line 2 (rank 0) is inside `if rank == 0:` (line 1), line 4 (rank 1) is inside "
        "`if rank == 1:` (line 3): let every rank, ranks 2-3 too, make one call."
    )
    assert code(finding) == [
        "|1|if rank == 0:",
        "0|2|    dist.all_reduce(x)",
        "|3|if rank == 1:",
        "1|4|    dist.all_reduce(x)",
    ]


def test_calls_at_different_lines_without_a_condition():
    source = "for x in y:\n    dist.all_reduce(x)\nfor x in z:\n    dist.all_reduce(x)"
    pool = Ranks(3)
    pool.code[CELL] = source
    pool[0].blocked(line=2)
    pool[1].blocked(line=4)
    pool[2].finished()
    finding = only(pool)
    assert finding.next_step == (
        "The ranks wait at different lines: let every rank, rank 2 too, make one call."
    )
    assert [line.split("|")[:2] for line in code(finding)] == [
        ["", "1"],
        ["0", "2"],
        ["", "3"],
        ["1", "4"],
    ]


def test_the_line_of_other_ranks_is_not_to_blame():
    source = (
        "for b in y:\n    if rank == 0:\n        dist.all_reduce(x)\n    else:\n"
        "        dist.all_reduce(x)\n        if rank == 2:\n            break"
    )
    pool = Ranks(3)
    pool.code[CELL] = source
    for rank, line in ((0, 3), (1, 5), (2, 5)):
        pool[rank].done(line=line)
        if rank < 2:
            pool[rank].blocked(line=line)
    pool[2].finished()
    finding = only(pool)
    assert finding.suspicions == (
        "`break` in line 7, inside `if rank == 2:` (line 6), skips line 5 in later iterations on "
        "rank 2",
    )
    assert "`if rank == 0:`" not in finding.next_step


@pytest.mark.parametrize("loop", [True, False])
def test_a_call_too_many(loop: bool):
    """The other ranks have made each other call, as often."""
    call = "    dist.all_reduce(x)\n"
    source = f"for e in range(3):\n{call}    if e and rank == 2:\n    {call}"
    pool = Ranks(3)
    pool.code[CELL] = source if loop else source.replace("for e in range(3):", "if True:")
    for rank in (0, 1):
        for _ in range(3):
            pool[rank].done(line=2)
        pool[rank].finished()
    for line in (2, 2, 4):
        pool[2].done(line=line)
    pool[2].blocked(line=2)
    finding = only(pool)
    assert finding.suspicions == ()
    assert finding.next_step == (
        "Line 4, `dist.all_reduce(x)`, has called all_reduce more often on rank 2 than on ranks "
        "0-1, inside `if e and rank == 2:` (line 3): call it on all ranks, or not at all. Since "
        "then, calls of rank 2 have met other calls of ranks 0-1: do not trust the results."
    )
    assert code(finding) == [
        "2|2|    dist.all_reduce(x)",
        "|3|    if e and rank == 2:",
        "|4|        dist.all_reduce(x)",
    ]


def test_a_break_of_the_outer_loop_and_an_innocent_continue():
    source = (
        "for b in y:\n    for i in z:\n        if i == 1:\n            continue\n"
        "        dist.all_reduce(x)\n    if rank == 1:\n        break"
    )
    finding = missing(source, {0: [5], 1: [5], 2: [5]}, 5)
    assert finding.suspicions == (
        "`break` in line 7, inside `if rank == 1:` (line 6), skips line 5 in later iterations on "
        "rank 1",
    )
    assert finding.next_step == (
        "Let all ranks take the `break` in line 7, inside `if rank == 1:` (line 6), in the same "
        "iteration: put `stop = torch.tensor(1.0 if rank == 1 else 0.0, device=device)` and "
        "`dist.all_reduce(stop)` above the `if`, and `if stop: break` in its place."
    )


def test_an_exit_of_another_rank_is_not_to_blame():
    source = "for b in y:\n    if rank == 5:\n        continue\n    dist.all_reduce(x)"
    finding = missing(source, {0: [4], 1: [4], 2: [4]}, 4)
    assert "continue" not in finding.suspicions[0]
    assert "fewer iterations" in finding.suspicions[0]


def test_the_line_has_run_before_and_no_loop_is_around_it():
    finding = missing("if rank:\n    dist.all_reduce(x)", {0: [2], 1: [2], 2: [2]}, 2)
    assert finding.next_step == _GENERIC


def test_no_cell_runs_on_the_missing_rank():
    pool = Ranks(2)
    pool.code[CELL] = "if rank == 0:\n    dist.all_reduce(x)"
    pool[0].blocked(line=2)
    pool[1].idle()
    assert only(pool).next_step.startswith("No cell runs on rank 1")


def test_calls_that_were_forgotten_are_not_counted():
    pool = Ranks(2)
    pool.code[CELL] = "for batch in data:\n    dist.all_reduce(x)"
    for state in pool:
        for _ in range(9):
            state.done(line=2)
    pool[0].blocked(line=2)
    pool[1].finished()
    (finding,) = pool.diagnose(last=4).findings
    assert finding.suspicions == (
        "`for batch in data:` (line 1) had fewer iterations on rank 1, as if the data is split "
        "unevenly",
    )
    assert "same number of iterations" in finding.next_step


def test_different_calls_at_different_lines():
    pool = Ranks(3)
    pool.code[CELL] = "if rank == 0:\n    dist.broadcast(x, 0)\ndist.all_reduce(x)"
    first = pool[0].blocked("broadcast", line=2)
    others = [pool[rank].issue(line=3) for rank in (1, 2)]
    for rank, record in zip((1, 2), others, strict=True):
        pool[rank].more["mismatches"] = (pool[rank].saw(record, pool[0], first, "op"),)
        pool[rank].raised("CollectiveMismatchError: no", line=3)
    (finding,) = pool.diagnose().findings
    assert finding.next_step == (
        "Line 2 is inside `if rank == 0:` (line 1): move it out, so that ranks 1-2 run it, too."
    )
    assert code(finding) == [
        "|1|if rank == 0:",
        "0|2|    dist.broadcast(x, 0)",
        "1-2|3|dist.all_reduce(x)",
    ]


def test_different_calls_at_one_line_quote_nothing():
    pool = Ranks(2)
    pool.code[CELL] = "if rank < 2:\n    dist.all_reduce(x)"
    one = pool[0].blocked(line=2)
    pool[1].issue(line=2, input_sizes=((5,),))
    pool[1].more["mismatches"] = (pool[1].saw(1, pool[0], one, "input_sizes"),)
    pool[1].raised("CollectiveMismatchError: no", line=2)
    (finding,) = pool.diagnose().findings
    assert finding.code == ()
    assert "inside" not in finding.next_step
