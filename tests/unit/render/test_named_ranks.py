"""The ranks on a card: short names, partners of messages, and one next step for one fault."""

import random

import pytest

from nbddp.notebook.render.diagnosis_card import card
from nbddp.notebook.render.stacks import stacks
from tests.support.looks import Ranks


def shown(pool: Ranks, part: str = "text/plain") -> str:
    return card(pool.diagnose(), acted=True, views=pool.views())[part]


def pairs(count: int, *, distance: int = 1) -> Ranks:
    """Each rank receives from its partner first."""
    pool = Ranks(count)
    for rank, state in enumerate(pool):
        state.blocked("recv", peer=rank ^ distance, line=3, at_s=1)
    return pool


def test_many_pairs_are_named_by_their_distance():
    found = shown(pairs(64))
    assert "  > even ranks 0-62 have waited in recv from the next rank for 1.0 s," in found
    assert "  > odd ranks 1-63 have waited in recv from the rank before for 1.0 s," in found
    flat = " ".join(found.split())
    assert "so do each of even ranks 2-62 and the next rank." in flat
    assert "…" not in found
    found = shown(pairs(64, distance=32))
    assert "  > ranks 0-31 have waited in recv from the rank 32 above for 1.0 s," in found
    assert "so do each of ranks 1-31 and the rank 32 above." in " ".join(found.split())


def test_stacks_name_partners_by_their_distance():
    found = stacks(pairs(64).views())["text/plain"]
    assert "even ranks 0-62: have waited in recv from the next rank for 1.0 s" in found


def test_partners_without_a_rule_are_in_the_details():
    pool, peers = Ranks(64), [*range(64)]
    random.Random(0).shuffle(peers)
    for rank, peer in enumerate(peers):
        pool[rank].blocked("recv", peer=peer, line=3, at_s=1)
    found = shown(pool)
    assert "have waited in recv from another rank for 1.0 s" in found
    assert "rank …" not in found
    listed = f"waited in recv from another rank (0: {peers[0]}, 1: {peers[1]}, 2: {peers[2]}, "
    assert listed in shown(pool, "text/html")
    assert listed in stacks(pool.views())["text/plain"]


def test_stacks_have_the_words_of_the_card():
    pool = Ranks(4)
    pool.group("tp", 0, 1)
    pool[0].blocked(group="tp", line=3)
    record = pool[1].issue("recv", peer=0, line=4)
    pool[1].waits(record, kind="pending")
    pool[2].waits(*(pool[2].issue("recv", peer=3, tag=tag) for tag in range(5)))
    pool[3].waits(99)  # its record is too old
    found = stacks(pool.views())["text/plain"].splitlines()
    rows = [f"{rank}: {place.what}" for rank, place in pool.diagnose().ranks.items()]
    assert [line.removeprefix("rank ") for line in found if line.startswith("rank ")] == rows


@pytest.mark.parametrize(
    ("absent", "names"),
    [
        (range(1, 64, 2), "odd ranks 1-63"),
        (range(0, 64, 4), "ranks 0-60 in steps of 4"),
    ],
)
def test_a_long_list_with_a_rule_is_not_spelled_out(absent: range, names: str):
    found = shown(_missing(64, set(absent)))
    assert found.startswith(f"Deadlock: {names} never called all_reduce; ")
    assert f"  > {names} have finished the cell and called no collective in it" in found
    assert "0,2,4" not in found
    assert "1,5,9" not in found


def test_a_list_without_a_rule_is_the_same_wherever_it_stands():
    absent = {rank * rank for rank in range(2, 8)} | {1, 11, 15, 19}
    found = " ".join(shown(_missing(64, absent)).split())
    assert found.count("ranks 1,4,9,11,15-16,19,25,36,49 ") == 3
    assert found.count("ranks 0,2-3,5-8,10,12-14,17-18,20-24,… (54 ranks)") == 2
    assert found.count("26-35,37-48,50-63 ") == 1  # the row of the card has all of them


def _missing(count: int, absent: set[int]) -> Ranks:
    """Some ranks never call a collective."""
    pool = Ranks(count)
    for rank, state in enumerate(pool):
        if rank in absent:
            state.finished()
        else:
            state.blocked(line=4)
    return pool


def test_a_consequence_is_one_line_without_a_next_step():
    pool = Ranks(3)
    for rank, state in enumerate(pool):
        for step in (0, 2, 3) if rank == 2 else (0, 1, 2):
            state.done(line=4, iteration=(("step", step),))
    for rank in (0, 1):
        pool[rank].blocked(line=4, iteration=(("step", 3),))
    pool[2].finished()
    found = card(pool.diagnose())["text/plain"]
    assert found.count("Next:") == 1
    assert "Warning" not in found
    also = "\n  Also: since the 2nd all_reduce (#2), rank 2 was at step 2, the others at step 1"
    assert also in found


def test_after_a_mismatch_all_ranks_that_took_part_are_named():
    for raised in ((), (2,), (1, 2)):  # the others wait
        pool = Ranks(4)
        for rank, state in enumerate(pool):
            if rank in raised:
                state.issue("broadcast" if rank == 2 else "all_reduce", line=4)
                state.raised("CollectiveMismatchError: no")
            else:
                state.blocked("broadcast" if rank == 2 else "all_reduce", line=4)
        assert "  Now: ranks 0-3 are freed: an exception is raised in their lines. " in shown(pool)
