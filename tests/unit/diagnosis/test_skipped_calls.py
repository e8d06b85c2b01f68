"""Calls that ranks skip by a `continue` or `return`: the proof, and the change of the code."""

import ast
import textwrap

import pytest

from nbddp.controller.diagnosis import ChangedLine, Code
from nbddp.controller.diagnosis.suggested_change import moved_before, skipped_together
from tests.support.changes import apply_change
from tests.support.looks import CELL, Ranks, only

_MARKS = {"same": " ", "removed": "-", "added": "+"}


def shown(lines: tuple[ChangedLine, ...]) -> list[str]:
    return [f"{_MARKS[line.change]}{line.source}" for line in lines]


def lines_of(text: str) -> list[str]:
    return textwrap.dedent(text).strip("\n").splitlines()


MOVED_UP = {
    "before a continue": (
        """
        for step in range(5):
            loss = f(step)
            if rank == 2 and step == 1:
                print("left out")
                continue
            # of all
            dist.all_reduce(loss)
            dist.barrier()
            if rank == 0:
                print(loss.item() / world_size)
        """,
        7,
        3,
        """
        +    # of all
        +    dist.all_reduce(loss)
        +    dist.barrier()
             if rank == 2 and step == 1:
                 ...
                 continue
        -    # of all
        -    dist.all_reduce(loss)
        -    dist.barrier()
        """,
    ),
    "before a return": (
        """
        def save():
            if rank:
                return
            dist.barrier()
        """,
        4,
        2,
        """
        +    dist.barrier()
             if rank:
                 return
        -    dist.barrier()
        """,
    ),
}


@pytest.mark.parametrize("name", MOVED_UP)
def test_a_call_moves_before_the_if_by_which_ranks_skip_it(name: str):
    source, line, condition, change = MOVED_UP[name]
    text = "\n".join(lines_of(source))
    changed = moved_before(Code(text), line, condition)
    assert shown(changed) == lines_of(change)
    assert len(apply_change(text, changed).split("dist.barrier()")) == 2
    ast.parse(apply_change(text, changed))


_SKIP = "for x in range(4):\n    if rank:\n        continue\n    "
NOT_MOVED_UP = {
    "a line between them": (f"{_SKIP}y = f(x)\n    dist.all_reduce(y)", 5),
    "the rest may call others": (f"{_SKIP}dist.barrier()\n    step(x)", 4),
    "the rest calls another one": (f"{_SKIP}dist.barrier()\n    y = 1\n    dist.barrier()", 4),
    "a function that may call it": (f"{_SKIP}loss.backward()", 4),
    "asynchronous": (f"{_SKIP}h = dist.all_reduce(y, async_op=True)", 4),
    "of a group": (f"{_SKIP}dist.all_reduce(y, group=mine)", 4),
    "a condition that would see the new value": (
        "for x in y:\n    if rank and z:\n        continue\n    z = dist.barrier()",
        4,
    ),
    "two in one line": (f"{_SKIP}y = 1; dist.barrier()", 4),
    "an else": ("for x in y:\n    if rank: continue\n    else: z = 1\n    dist.barrier()", 4),
    "a break": ("for x in y:\n    if rank:\n        break\n    dist.barrier()", 4),
    "a return inside a loop": (
        "def f():\n  for x in y:\n    if rank:\n        return\n    dist.barrier()",
        5,
    ),
    "a value that is returned": ("def f():\n  if rank:\n    return 1\n  dist.barrier()", 4),
    "a loop that may never end": (
        "while x:\n    if rank:\n        continue\n    dist.barrier()",
        4,
    ),
    "a condition that would see the result": (
        "for x in y:\n    if rank and x > 1:\n        continue\n    dist.all_reduce(x)",
        4,
    ),
    "a tensor that perhaps is not there": (
        "for x in y:\n    if rank == 0:\n        t = x\n    if rank:\n        continue\n"
        "    dist.all_reduce(t)",
        6,
    ),
    "the if itself may call another one": (
        "for x in y:\n    if rank and ready():\n        continue\n    dist.barrier()",
        4,
    ),
}


@pytest.mark.parametrize("name", NOT_MOVED_UP)
def test_a_call_that_stays_behind_the_if(name: str):
    source, line = NOT_MOVED_UP[name]
    condition = max(n for n, each in enumerate(source.splitlines(), 1) if "if rank" in each)
    assert moved_before(Code(source), line, condition) == ()


def skipped(code: str, line: int = 4) -> list[str]:
    """The change where rank 1 has finished, and rank 0 waits in its second call."""
    pool = Ranks(2)
    pool.code[CELL] = code
    for rank in (0, 1):
        pool[rank].done(line=line)
    pool[0].blocked(line=line)
    pool[1].finished()
    change = only(pool).change
    return [] if change is None else shown(change.lines)


def skipped_in_the_middle(values: tuple[int, ...], loop: str) -> list[str]:
    """The change where rank 1 called it in these iterations only, and rank 0 in all of them."""
    pool = Ranks(2)
    pool.code[CELL] = (
        f"for {loop}:\n    if rank == 1 and x == 1:\n        continue\n    dist.barrier()"
    )
    for x in range(len(values)):
        pool[0].done(line=4, iteration=[("e", 0), ("x", x)])
    pool[0].blocked(line=4, iteration=[("e", 0), ("x", len(values))])
    for x in values:
        pool[1].done(line=4, iteration=[("e", 0), ("x", x)])
    pool[1].finished()
    finding = pool.diagnose().findings[0]
    assert finding.kind == "missing-rank"
    return [] if finding.change is None else shown(finding.change.lines)


def test_a_rank_that_was_in_a_later_iteration_has_skipped_one():
    assert skipped_in_the_middle((0, 2, 3), "x in range(n)")[:2] == CHANGE
    assert skipped_in_the_middle((0, 2, 3), "x, _ in enumerate(loader)")[:2] == CHANGE
    assert skipped_in_the_middle((0, 1, 2), "x in range(n)") == []
    assert skipped_in_the_middle((0, 2, 4), "x in range(0, n, 2)") == []
    assert skipped_in_the_middle((0, 2, 3), "x in buckets") == []


CHANGE = ["+    dist.barrier()", "     if rank == 1 and x == 1:"]


def test_a_skipped_call_moves_up_if_it_is_proven_to_be_skipped():
    skip = "    if rank == 1 and x == 1:\n        continue\n    dist.barrier()"
    assert skipped(f"for x in range(2):\n{skip}")[:2] == CHANGE
    assert skipped(f"for x in range(world_size):\n{skip}")[:2] == CHANGE
    always = skip.replace(" and x == 1", "")
    assert skipped(f"for x in loader:\n{always}")[0] == CHANGE[0]


def test_a_call_that_was_perhaps_skipped_has_no_change():
    skip = "    if rank == 1 and x == 1:\n        continue\n    dist.barrier()"
    assert skipped(f"for x in loader:\n{skip}") == []
    assert skipped(f"for x in range(2 - rank):\n{skip}") == []
    two = "    if bad:\n        continue"
    assert skipped(f"for x in range(2):\n{two}\n{skip}", line=6) == []


TOGETHER = """\
for step in range(5):
    loss = f(step)
    if torch.isnan(loss):
        continue
    dist.all_reduce(loss)
"""


def test_all_ranks_skip_a_call_if_one_of_them_does():
    change = """
    +    skip = torch.tensor(int(torch.isnan(loss)), device=loss.device)
    +    dist.all_reduce(skip, op=dist.ReduceOp.MAX)
    -    if torch.isnan(loss):
    +    if skip:
             continue
         dist.all_reduce(loss)
    """
    shown_lines = shown(skipped_together(Code(TOGETHER), 5, 3))
    assert shown_lines == lines_of(change)


def test_the_condition_names_a_tensor_where_that_of_the_call_comes_later():
    later = TOGETHER.replace(
        "    dist.all_reduce(loss)", "    grad = loss * 2\n    dist.all_reduce(grad)"
    )
    assert "device=loss.device" in shown(skipped_together(Code(later), 6, 3))[0]
    unknown = Code(later.replace("torch.isnan(loss)", "loss != loss"))
    assert "device=device" in shown(skipped_together(unknown, 6, 3))[0]
    assert skipped_together(unknown, 6, 3, has_device=False) == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch.isnan(loss):", "isbad(loss):"),  # perhaps a collective
        ("torch.isnan(loss):", "(bad := torch.isnan(loss)):"),
        ("torch.isnan(loss):\n        continue", "torch.isnan(loss): continue"),
        ("continue", "break"),
        ("loss)\n", "loss, group=pair)\n"),  # the others do not exchange the condition
        ("f(step)", "skip(step)"),
        ("for step in range(5)", "while training()"),
        ("    dist", "    if rank:\n        dist"),
    ],
)
def test_a_condition_that_is_not_simple_stays(old: str, new: str):
    text = TOGETHER.replace(old, new, 1 if old != "loss)\n" else -1)
    line = next(n for n, each in enumerate(text.splitlines(), 1) if "all_reduce" in each)
    assert skipped_together(Code(text), line, 3) == ()


def test_the_iteration_that_was_skipped_is_named():
    pool = Ranks(3)
    pool.code[CELL] = TOGETHER
    line = next(n for n, each in enumerate(TOGETHER.splitlines(), 1) if "all_reduce" in each)
    for step in range(3):
        for rank in (0, 2):
            pool[rank].done(line=line, iteration=[("step", step)])
    for step in (0, 2, 3):  # rank 1 has left out step 1
        pool[1].done(line=line, iteration=[("step", step)])
    for rank in (0, 2):
        pool[rank].blocked(line=line, iteration=[("step", 3)])
    pool[1].finished()
    finding = pool.diagnose().findings[0]
    assert finding.next_step == (
        "Rank 1 took the `continue` in line 4, inside `if torch.isnan(loss):` (line 3), at step 1. "
        f"Let all ranks skip line {line} together."
    )
