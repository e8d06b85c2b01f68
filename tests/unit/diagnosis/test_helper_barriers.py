"""A barrier inside a function that only one rank calls: it moves, and the rest of it stays."""

import msgspec
import pytest

from nbddp.controller.diagnosis import Finding
from tests.support.changes import apply_change
from tests.support.looks import CELL, Ranks, only, site

SAVE = """\
def save(step):
    torch.save(model, f"{step}.pt")
    dist.barrier()

for step in range(3):
    dist.all_reduce(loss)
    if rank == 0:
        save(step)"""

MOVED = """\
def save(step):
    torch.save(model, f"{step}.pt")

for step in range(3):
    dist.all_reduce(loss)
    if rank == 0:
        save(step)
    dist.barrier()
"""

STEP = (
    "Keep `save(step)` inside `if rank == 0:` (line 7). Move the barrier (line 3) out of `save`, "
    "to a line after the `if` block, so that rank 1 calls it, too."
)


def met_by_another_call(code: str, line: int) -> Finding:
    """Rank 0 calls the barrier at a line, inside ``save``; rank 1 is at its next all_reduce."""
    pool = Ranks(2)
    pool.code[CELL] = code
    all_reduce = code.splitlines().index("    dist.all_reduce(loss)") + 1
    for state in pool:
        state.done(line=all_reduce)
    first = pool[0].issue("barrier", line=line)
    operation = pool[0].operations[-1]
    inside = site(line, "dist.barrier()", function="save")
    pool[0].operations[-1] = msgspec.structs.replace(operation, site=inside)
    second = pool[1].issue(line=all_reduce)
    pool[0].more["mismatches"] = (pool[0].saw(first, pool[1], second, "op"),)
    pool[0].raised("CollectiveMismatchError: no", line=line)
    pool[1].waits(second)
    (finding,) = [each for each in pool.diagnose().findings if each.kind != "desynchronized-loop"]
    return finding


def never_met(
    code: str, line: int, caller: int, text: str = "save(step)", **fields: str
) -> Finding:
    """Rank 0 waits in a barrier inside ``save``, which rank 1 has never called."""
    pool = Ranks(2)
    pool.code[CELL] = code
    op = fields.get("op", "barrier")
    record = pool[0].issue(op, line=line, source=f"dist.{op}()")
    operation = pool[0].operations[-1]
    stack = (operation.site, site(caller, text))
    pool[0].waits(record, stack=stack)
    pool[1].finished()
    return only(pool)


def test_the_caller_of_a_helper_is_named_where_its_barrier_meets_another_call():
    finding = met_by_another_call(SAVE, 3)
    assert finding.kind == "mismatched-collective"
    assert finding.next_step == STEP
    assert [line.site.line for line in finding.code] == [3, 6, 7, 8]
    assert [list(line.ranks) for line in finding.code] == [[0], [1], [], [0]]
    assert finding.change is not None
    assert apply_change(SAVE, finding.change.lines) == MOVED


def test_a_barrier_of_a_helper_moves_where_the_other_ranks_have_finished():
    finding = never_met(SAVE, 3, 8)
    assert finding.next_step == STEP
    assert finding.change is not None
    assert apply_change(SAVE, finding.change.lines) == MOVED


def test_a_condition_with_other_parts_keeps_the_call():
    code = SAVE.replace("if rank == 0:", "if step % 2 == 0 and rank == 0:")
    finding = never_met(code, 3, 8)
    assert finding.change is not None
    assert apply_change(code, finding.change.lines).endswith(
        "        save(step)\n    dist.barrier()\n"
    )


WITHOUT_CHANGE = {
    "a line follows the barrier": SAVE.replace(
        "    dist.barrier()\n", "    dist.barrier()\n    log()\n"
    ),
    "a second call of the helper": f"{SAVE}\nsave(9)",
    "the barrier has a group": SAVE.replace("barrier()", "barrier(group)"),
    "a later call of the same if": f"{SAVE}\n        dist.broadcast(x, 0)",
}


@pytest.mark.parametrize("name", WITHOUT_CHANGE)
def test_text_says_what_to_move_where_a_change_is_not_safe(name: str):
    code = WITHOUT_CHANGE[name]
    caller = code.splitlines().index("        save(step)") + 1
    finding = never_met(code, 3, caller)
    assert finding.change is None
    assert finding.next_step.startswith("Keep `save(step)` inside `if rank == 0:`")


def test_a_helper_that_only_communicates_moves_as_a_whole():
    code = "def sync():\n    dist.barrier()\n\nif rank == 0:\n    sync()"
    finding = never_met(code, 2, 5, "sync()")
    assert finding.next_step == (
        "Line 5, `sync()`, is inside `if rank == 0:` (line 4): move it out, so that rank 1 runs "
        "it, too."
    )
    assert finding.change is not None


def test_a_helper_that_reduces_and_writes_does_not_move_as_a_whole():
    code = "def save(x):\n    dist.all_reduce(x)\n    torch.save(x)\n\nif rank == 0:\n    save(x)"
    finding = never_met(code, 2, 6, "save(x)", op="all_reduce")
    assert finding.change is None
    assert finding.next_step == (
        "Line 6, `save(x)`, is inside `if rank == 0:` (line 5), and `save` calls all_reduce (line "
        "2). Move that call out of `save` and of the `if`, so that rank 1 calls it, too; the rest "
        "of `save` may stay inside."
    )
