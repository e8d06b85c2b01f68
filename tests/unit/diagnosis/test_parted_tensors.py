"""Cards of parted replicas name the ranks of each tensor, and two sides that are equally large."""

from msgspec.structs import replace

from nbddp.wire.flight_recorder import ReplicaSteps
from tests.support.parted_steps import digest, found, found_in, steps, whole, words_of

EQUAL = (1, 1), (2, 2)


def _after(weight: int, bias: int) -> ReplicaSteps:
    return replace(steps((1, 1), (weight, bias)), is_ddp=True)


def test_two_ranks_that_differ_in_different_tensors():
    (parted,) = found(_after(2, 2), _after(2, 2), _after(2, 9), _after(8, 2))
    assert str(parted.culprits) == "2-3"
    words = words_of(parted)
    assert words.headline.startswith(
        "Rank 3 has other values than ranks 0-2 in 'weight' of Net, rank 2 other values than ranks "
        "0-1,3 in 'bias': its replicas"
    )
    assert words.next_step.startswith("Look for what perhaps only rank 3 or rank 2 did before")


def test_tensors_in_which_the_same_ranks_differ_are_told_together():
    (parted,) = found(_after(2, 2), _after(2, 2), _after(8, 9), _after(2, 2))
    headline = words_of(parted).headline
    assert headline.startswith("Rank 2 has other values than ranks 0-1,3 in 'weight' and 1 more of")


def test_two_sides_that_are_equally_large():
    (parted,) = found(_after(2, 2), _after(8, 2), _after(2, 2), _after(8, 2))
    assert str(parted.culprits) == "0-3"
    words = words_of(parted)
    assert words.headline.startswith("Ranks 0,2 have other values than ranks 1,3 in 'weight' of")
    assert "only ranks 0,2 or ranks 1,3 did" in words.next_step
    assert "lines that give each rank its own values" in words.next_step


def test_sides_of_which_none_is_larger_than_all_others():
    (parted,) = found(*(_after(number, 2) for number in (2, 2, 3, 3, 4)))
    headline = words_of(parted).headline
    values = "different values (equal on ranks 0-1 and on ranks 2-3)"
    assert headline.startswith(f"Ranks 0-4 have {values} in 'weight' of Net")


def test_all_ranks_differ_though_not_in_each_tensor():
    (parted,) = found(_after(2, 2), _after(2, 3), _after(3, 4), _after(4, 5))
    assert parted.all_differ
    headline = words_of(parted).headline
    assert headline.startswith(
        "Ranks 2-3 have other values than ranks 0-1 in 'weight' of Net, ranks 0-3 different values "
        "in 'bias':"
    )


def test_weights_that_different_ranks_change_after_the_last_step():
    def ranks(*ends: tuple[int, int]) -> list[tuple[ReplicaSteps, ReplicaSteps]]:
        return [(steps(*EQUAL), whole((1, 1), end)) for end in ends]

    (parted,) = found_in(*ranks((2, 2), (2, 2), (2, 9), (8, 2)))
    words = words_of(parted)
    assert words.headline.startswith("Rank 3 has other values than ranks 0-2 in 'weight' of Net, ")
    assert "change without SGD, perhaps only on rank 3 or rank 2" in words.next_step


# --- the state of the optimizer -------------------------------------------------------------------

STATES = "exp_avg of weight", "exp_avg of bias"


def _with_states(*, lost: bool = False) -> ReplicaSteps:
    kept = {"states": STATES, "state_hashes": digest(1) * 2}
    return replace(steps(*EQUAL), **({"lost_states": STATES} if lost else kept))


def test_a_state_that_one_rank_has_lost():
    (parted,) = found(_with_states(), _with_states(lost=True))
    assert (parted.beside, str(parted.culprits)) == ("state", "1")
    words = words_of(parted)
    assert words.headline == (
        "Rank 1 has, at the end of the cell, no 'exp_avg of weight' and 1 more of Net, which SGD "
        "has on rank 0: its parameters are still equal."
    )
    assert "empties the state of SGD on rank 1, also after line 7" in words.next_step


def test_a_state_that_all_ranks_have_lost_or_that_one_has_never_had():
    assert found(_with_states(lost=True), _with_states(lost=True)) == []
    assert found(_with_states(), steps(*EQUAL)) == []  # an optimizer that shards its state
