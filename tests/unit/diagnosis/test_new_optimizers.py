"""Several optimizers step the same parameters: their steps are compared together."""

from msgspec.structs import replace

from nbddp.wire.flight_recorder import ReplicaSteps, Site, StepStart
from tests.support.parted_steps import digest, found, found_in, steps, whole, words_of

_FIRST = (1, 1), (2, 2), (3, 3)
RIGHT = steps(*_FIRST, (4, 4))


def _of(replica: ReplicaSteps, numbers: list[int], *classes: str) -> ReplicaSteps:
    """The steps of optimizers with these numbers; the first number is of the time before them."""
    return replace(
        replica,
        optimizers=classes,
        optimizer_of_step=bytes(numbers),
    )


def test_a_rank_with_another_optimizer_is_told_with_its_first_step():
    wrong = _of(steps(*_FIRST, (9, 4)), [0, 0, 1, 1], "SGD", "SGD")
    (parted,) = found(wrong, RIGHT, RIGHT)
    assert (parted.step, parted.new_optimizers) == (3, {0: 2})
    words = words_of(parted)
    assert (
        "after step 3 of SGD in this cell, and rank 0 steps with another optimizer since its step 2"
        in words.headline
    )
    assert "this one of ranks 1-2 is an earlier one." in words.reason
    assert "in the same iteration, or none" in words.next_step


def test_ranks_that_take_another_optimizer_where_one_does_not_are_told():
    changed = _of(RIGHT, [0, 0, 0, 1], "SGD", "SGD")
    (parted,) = found(steps(*_FIRST, (9, 4)), changed, changed)
    assert str(parted.culprits) == "0"
    assert parted.new_optimizers == {1: 3, 2: 3}
    assert "ranks 1-2 step with another optimizer since their step 3" in words_of(parted).headline


def test_steps_that_all_ranks_made_with_the_later_optimizer_do_not_count_as_other():
    right = _of(RIGHT, [0, 0, 1, 0], "SGD", "SGD")
    wrong = _of(steps(*_FIRST, (9, 4)), [0, 0, 1, 1], "SGD", "SGD")
    (parted,) = found(right, wrong, right)
    assert parted.new_optimizers == {1: 3}


def test_an_optimizer_that_all_ranks_change_together_is_not_other():
    right, wrong = (
        _of(each, [0, 0, 1, 1], "SGD", "Adam") for each in (RIGHT, steps(*_FIRST, (9, 4)))
    )
    (parted,) = found(right, wrong, right)
    assert (parted.new_optimizers, parted.optimizers, parted.optimizer) == ({}, {}, "Adam")
    assert "after step 3 of SGD and Adam in this cell." in words_of(parted).headline


def test_another_class_and_other_settings_are_told_with_the_other_optimizer():
    row = steps(*_FIRST, (9, 4))
    (parted,) = found(_of(row, [0, 0, 0, 1], "SGD", "Adam"), RIGHT, RIGHT)
    assert "; it was Adam on rank 0, SGD on ranks 1-2. " in words_of(parted).next_step
    slow, fast = (
        replace(each, settings=("lr=0.1", f"lr={rate}"), setting_steps=(0, 3))
        for each, rate in ((_of(row, [0, 0, 0, 1], "SGD", "SGD"), 0.01), (RIGHT, 0.1))
    )
    (parted,) = found(slow, fast, fast)
    assert "; it had lr=0.01 on rank 0, lr=0.1 on ranks 1-2. " in words_of(parted).next_step


def test_a_line_in_which_one_rank_alone_takes_another_optimizer_is_no_change_after_the_last_step():
    lines = Site(line=7), Site(line=9)
    wrong = _of(steps(*_FIRST, (9, 4)), [0, 0, 0, 1], "SGD", "SGD")
    wrong = replace(wrong, sites=lines, site_of_step=bytes([0, 0, 0, 1]))
    ends = [whole((1, 1), row) for row in ((9, 4), (4, 4), (4, 4))]
    (parted,) = found_in((wrong, ends[0]), (RIGHT, ends[1]), (RIGHT, ends[2]))
    assert (parted.is_after, parted.step, parted.new_optimizers) == (False, 3, {0: 3})


def test_optimizers_of_other_parameters_are_no_proof_of_equal_last_steps():
    both = steps(*_FIRST)
    part = replace(
        both, optimizer_number=1, tensors=("weight",), newest=digest(9),
        details=digest(3) + digest(9), digests=digest(3) + digest(9), site_of_step=bytes(2),
        starts=(),
    )  # fmt: skip
    end, other = whole((1, 1), (9, 3)), whole((1, 1), (4, 4))
    (parted,) = found_in((both, part, end), (RIGHT, other), (RIGHT, other))
    assert not parted.is_after
    words = words_of(parted)
    assert "made 3 steps each of SGD" in words.headline
    assert words.next_step.startswith("Let all ranks step the same parameters in the same iterat")


def test_a_state_in_whose_place_another_optimizer_steps_is_not_compared():
    kept, other = (
        replace(steps(*_FIRST), states=("step of bias",), state_hashes=digest(number))
        for number in (1, 2)
    )
    (parted,) = found(kept, other)
    assert parted.beside == "state"
    assert found(kept, replace(other, state_hashes=b"")) == []


def test_ranks_with_other_numbers_of_steps_are_not_said_to_step_each_optimizer():
    more = _of(steps(*_FIRST, (9, 4)), [0, 0, 0, 1], "SGD", "Adam")
    (parted,) = found_in((steps(*_FIRST), whole((1, 1), (3, 3))), (more, whole((1, 1), (9, 4))))
    assert "2 steps of SGD or Adam in this cell" in words_of(parted).headline


def test_the_settings_of_a_step_alone_are_not_those_of_the_common_step():
    lines = Site(line=3), Site(line=7)
    settings = {"settings": ("lr=0.5", "lr=0.1"), "setting_steps": (0, 2)}
    start = StepStart(step=2, digest=digest(5), details=digest(5) + digest(1), states=b"")
    alone = _of(steps((1, 1), (5, 1), (6, 2)), [0, 0, 1], "Adam", "SGD")
    alone = replace(
        alone, sites=lines, site_of_step=bytes([0, 0, 1]), starts=(*alone.starts, start), **settings
    )
    right = replace(
        steps((1, 1), (2, 2)), settings=("lr=0.1",), setting_steps=(0,), sites=lines[1:]
    )
    (parted,) = found(alone, right)
    assert (parted.setting, parted.new_optimizers, parted.optimizers) == (None, {}, {})
    assert parted.alone is not None
    assert (str(parted.alone.ranks), parted.alone.optimizer) == ("0", "Adam")


def test_a_class_that_only_another_rank_has_stepped_is_named_with_those_of_the_first_one():
    odd = _of(steps(*_FIRST, (9, 4)), [0, 0, 0, 1], "SGD", "Adam")
    (parted,) = found(RIGHT, odd)
    assert parted.classes == ("SGD", "Adam")
    assert parted.steps.optimizers == ("SGD",)


def test_an_early_step_of_one_rank_alone_is_one_of_one_optimizer():
    lone = _of(
        replace(steps((2, 2), (3, 3), (4, 4)), early_site=Site(line=4)), [0, 0, 1], "SGD", "Adam"
    )
    (parted,) = found(lone, replace(steps((1, 1), (3, 4), (4, 5)), starts=()))
    assert parted.alone is not None
    assert parted.alone.optimizer == "SGD"
