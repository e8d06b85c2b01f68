"""Ranks that called one line in different groups are not told as ranks without the call."""

from nbddp.controller.diagnosis import Finding
from tests.support.looks import CELL, Ranks, only

_LINE = "dist.all_reduce(x, group=mine)"


def _meshes() -> Ranks:
    """Four ranks with groups for tensors and for data; each has called one of the first."""
    pool = Ranks(4)
    pool.code[CELL] = f"dist.all_reduce(x, group=tp)\n{_LINE}\nprint(x)"
    for name, ranks in (("tp0", (0, 1)), ("tp1", (2, 3)), ("dp0", (0, 2)), ("dp1", (1, 3))):
        pool.group(name, *ranks)
    for rank in range(4):
        pool[rank].done(group=f"tp{rank // 2}", line=1)
    return pool


def _chain(source: str = f"first(a)\n{_LINE}", line: int = 2) -> Finding:
    """Rank 0 waits in the group of ranks 0 and 1, and rank 1 has called that of ranks 1 and 2."""
    pool = Ranks(3)
    pool.code[CELL] = source
    pool.group("a", 0, 1)
    pool.group("b", 1, 2)
    for rank in (0, 1):
        pool[rank].done(group="a", line=1 if line == 2 else line)
    pool[0].blocked(group="a", line=line, source=_LINE)
    for rank in (1, 2):
        pool[rank].done(group="b", line=line, source=_LINE)
        pool[rank].finished()
    return only(pool)


def test_the_odd_rank_is_named_and_not_the_one_that_it_waits_for():
    pool = _meshes()
    for rank in (0, 2):
        pool[rank].done(group="dp0", line=2, source=_LINE)
        pool[rank].finished()
    pool[1].blocked(group="dp1", line=2, source=_LINE)
    pool[3].blocked(group="tp1", line=2, source=_LINE)
    finding = only(pool)
    assert finding.culprits.ranks == (2,)
    assert finding.next_step == (
        "Look at the `group` in line 2: ranks called it in different groups: ranks 0,2 in group "
        "'dp0' (ranks 0,2), rank 3 in group 'tp1' (ranks 2-3), rank 1 in group 'dp1' (ranks 1,3). "
        "Perhaps rank 3 is the odd one: if it calls the line in group 'dp1' (ranks 1,3), all "
        "members of each group call it."
    )


def test_no_rank_is_odd_if_no_single_change_lets_all_groups_end():
    assert _chain().next_step == (
        "Look at the `group` in line 2: ranks called it in different groups: rank 0 in group 'a' "
        "(ranks 0-1), ranks 1-2 in group 'b' (ranks 1-2). Let all members of a group call it "
        "there, or none."
    )


def test_a_loop_over_groups():
    source = "for mine in groups:\n    x = one()\n    " + _LINE
    assert _chain(source, line=3).next_step == (
        "Look at the `group` in line 3: ranks called it in different groups: rank 0 in group 'a' "
        "(ranks 0-1), rank 1 in group 'a' (ranks 0-1) and group 'b' (ranks 1-2), rank 2 in group "
        "'b' (ranks 1-2). Let all members of a group call it there equally often, or none."
    )


def test_groups_that_are_called_in_another_order_have_no_odd_rank():
    """Both ranks are still in the loop: each would come to the other group, too."""
    pool = Ranks(2)
    pool.code[CELL] = f"for mine in groups:\n    {_LINE}"
    for rank, group in enumerate((pool.group("a", 0, 1), pool.group("b", 0, 1))):
        pool[rank].blocked(group=group, line=2, source=_LINE)
    finding = only(pool)
    assert finding.kind == "group-cycle"
    assert finding.next_step.startswith("Call the groups in the same order")


def test_ranks_whose_records_were_left_out_are_not_said_to_have_made_no_call():
    pool = Ranks(2)
    pool.code[CELL] = f"{_LINE}\ndone()"
    pool.group("a", 0, 1)
    for _ in range(3):
        pool[1].done(line=2)
    pool[0].blocked(group="a", line=1, source=_LINE)
    pool[1].finished()
    told = [pool.diagnose(last=last).findings[0].next_step for last in (3, 1)]
    assert ["without the call" in each for each in told] == [True, False]
