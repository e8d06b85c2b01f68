"""A line by which one rank alone called a function with a collective is named, if proven."""

import pytest
from msgspec.structs import replace

from nbddp.controller.diagnosis import Finding
from tests.support.looks import CELL, Ranks, site

_LOOP = """\
def log():
    dist.reduce(x, 0)
for ep in range(2):
    log()
    if rank == 1 and ep == 0:
        log()
dist.barrier()"""
_BEHIND = """\
def log():
    dist.reduce(x, 0)
for ep in range(2):
    log()
if rank == 1:
    log()
dist.barrier()"""


def finding(code: str, *, own: list[int | None], theirs: list[int | None]) -> Finding:
    """What is found if rank 1 called reduce more often than ranks 0 and 2, which are in a barrier.

    Args:
        code: of the cell, with the barrier in its last line.
        own: the iterations of the calls of rank 1, whose stack in the last one is not known.
        theirs: those of the other ranks.
    """
    pool = Ranks(3)
    pool.code[CELL] = code
    inside = site(2, "dist.reduce(x, 0)", function="log")

    def at(step: int | None) -> list[tuple[str, int]]:
        return [] if step is None else [("ep", step)]

    for rank, state in enumerate(pool):
        calls = own if rank == 1 else theirs
        for number, step in enumerate(calls):
            is_last = rank == 1 and number == len(calls) - 1
            issue = state.blocked if is_last else state.done
            issue("reduce", root=0, line=2, iteration=at(step))
        state.operations[:] = [replace(each, site=inside) for each in state.operations]
        if rank != 1:
            state.blocked("barrier", line=code.count("\n") + 1)
    return pool.diagnose().findings[0]


def test_a_second_call_in_an_iteration():
    found = finding(_LOOP, own=[0, 0], theirs=[0])
    assert found.next_step == (
        "Line 6, `log()`, has called reduce more often on rank 1 than on ranks 0,2, inside "
        "`if rank == 1 and ep == 0:` (line 5): call it on all ranks, or not at all."
    )
    assert [line.site.line for line in found.code] == [2, 5, 6, 7]


def test_a_call_outside_of_the_loop():
    found = finding(_BEHIND, own=[0, 1, None], theirs=[0, 1])
    assert found.next_step.startswith(
        "Line 6, `log()`, has called reduce more often on rank 1 than on ranks 0,2"
    )


@pytest.mark.parametrize(
    ("code", "own", "theirs"),
    [
        pytest.param(_BEHIND, [0, 1, 2], [0, 1], id="the loop is longer"),
        pytest.param(_BEHIND, [None] * 3, [None] * 2, id="the loop has no variable in the records"),
        pytest.param(_LOOP.replace("rank == 1 and ep", "ep"), [0, 0], [0], id="not about ranks"),
        pytest.param(
            _LOOP.replace("    log()\n    if", "    if ok: log()\n    if"),
            [0, 0],
            [0],
            id="another line has a condition, too",
        ),
        pytest.param(f"say = log\n{_LOOP}", [0, 0], [0], id="the function has another name"),
        pytest.param(
            _LOOP.replace("for ep in range(2)", "while more()"), [0, 0], [0], id="a while"
        ),
    ],
)
def test_a_line_is_not_named_without_a_proof(
    code: str, own: list[int | None], theirs: list[int | None]
):
    assert "more often" not in finding(code, own=own, theirs=theirs).next_step


def test_a_call_too_many_on_several_ranks():
    pool = Ranks(4)
    pool.code[CELL] = "if rank != 0:\n    dist.all_reduce(x)\ndist.all_reduce(x)"
    pool[0].done(line=3)
    pool[0].finished()
    for rank in (1, 2, 3):
        pool[rank].done(line=2)
        pool[rank].blocked(line=3)
    assert pool.diagnose().findings[0].next_step == (
        "Line 2, `dist.all_reduce(x)`, has called all_reduce more often on ranks 1-3 than on rank "
        "0, inside `if rank != 0:` (line 1): call it on all ranks, or not at all. Since then, "
        "calls of ranks 1-3 have met other calls of rank 0: do not trust the results."
    )


def _next_step(last_line: str, *, calls: int) -> str:
    """Rank 0 has ended after these calls of a function; the others wait in one more."""
    pool = Ranks(3)
    pool.code[CELL] = f"def log(v):\n    dist.reduce(v, 0)\nif rank > 0:\n    log(a)\n{last_line}"
    inside = site(2, "dist.reduce(v, 0)", function="log")
    for rank, state in enumerate(pool):
        for _ in range(calls):
            state.done("reduce", root=0, line=2)
        if rank:
            state.blocked("reduce", root=0, line=2)
        else:
            state.finished()
        state.operations[:] = [replace(each, site=inside) for each in state.operations]
    return pool.diagnose().findings[0].next_step


def test_a_second_call_before_a_rank_has_finished():
    """The stack of ranks that wait has the innocent line."""
    assert _next_step("log(b)", calls=1) == (
        "Line 4, `log(a)`, has called reduce more often on ranks 1-2 than on rank 0, inside "
        "`if rank > 0:` (line 3): call it on all ranks, or not at all. Since then, calls of ranks "
        "1-2 have met other calls of rank 0: do not trust the results."
    )


def test_the_only_call_of_a_function_is_no_second_call():
    assert "more often" not in _next_step("", calls=0)


_FORWARD = """\
for s in range(3):
    loss = net()
    loss.backward()
    if rank == 0:
        dist.broadcast(x)
"""


def _forwards(code: str, *, extra_line: int) -> Finding:
    """Rank 0 calls the module once more; its next broadcast meets the gradients of the others."""
    pool = Ranks(3)
    pool.code[CELL] = code
    for rank, state in enumerate(pool):
        state.done("broadcast", root=0, line=2)
        state.done("all_reduce", line=3)
        state.done("broadcast", root=0, line=2 if rank else extra_line)
        state.blocked(*([] if rank else ["broadcast"]), line=3 if rank else 2)
    return pool.diagnose().findings[0]


def test_an_extra_forward_in_a_loop():
    found = _forwards(_FORWARD, extra_line=5)
    assert found.next_step == (
        "Line 5, `dist.broadcast(x)`, has called broadcast more often on rank 0 than on ranks 1-2, "
        "inside `if rank == 0:` (line 4): call it on all ranks, or not at all."
    )
    assert [line.site.line for line in found.code] == [2, 3, 4, 5]


def test_an_extra_line_without_a_condition_on_ranks_is_no_reason():
    found = _forwards(_FORWARD.replace("rank == 0", "odd"), extra_line=5)
    assert "more often" not in found.next_step
