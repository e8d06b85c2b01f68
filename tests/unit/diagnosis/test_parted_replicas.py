"""Replicas of a model that part: the step, the tensor and the odd rank, from hashes alone."""

from msgspec.structs import replace

from nbddp.wire.flight_recorder import ReplicaSteps, Site
from nbddp.wire.rank_set import NO_RANKS
from tests.support.parted_steps import digest, found, found_in, steps, whole, words_of


def test_equal_replicas_are_no_finding():
    assert found(steps((1, 1), (2, 2)), steps((1, 1), (2, 2))) == []


def test_the_odd_rank_the_step_and_the_tensor():
    right = steps((1, 1), (2, 2), (3, 3))
    (parted,) = found(right, steps((1, 1), (2, 5), (6, 6)), right)
    assert str(parted.culprits) == "1"
    assert (parted.step, parted.tensor, parted.others) == (1, "bias", 0)
    assert (parted.is_late, parted.site.line) == (False, 7)


def test_a_setting_that_differs_in_the_step_is_found():
    rows = (1, 1), (2, 2)
    settings = "lr=0.1, momentum=0.9", "lr=0.2, momentum=0.9"
    right = replace(steps(*rows), settings=settings, setting_steps=(0, 1))
    odd = replace(steps(rows[0], (3, 3)), settings=settings[:1], setting_steps=(0,))
    (parted,) = found(right, odd, right)
    assert parted.setting == ("lr", {0: "0.2", 1: "0.1", 2: "0.2"})
    unknown = replace(odd, settings=("lr=0.1", ""), setting_steps=(0, 1))
    (parted,) = found(right, unknown)
    assert parted.setting is None


def test_other_optimizers_are_told_and_no_setting_of_theirs():
    rows = (1, 1), (2, 2)
    right = replace(steps(*rows), settings=("lr=0.1, momentum=0",), setting_steps=(0,))
    odd = replace(
        steps(rows[0], (3, 3)), optimizers=("Adam",), settings=("lr=0.1",), setting_steps=(0,)
    )
    (parted,) = found(right, odd, right)
    assert parted.optimizers == {0: "SGD", 1: "Adam", 2: "SGD"}
    assert parted.setting is None


def test_two_ranks_have_no_majority():
    (parted,) = found(steps((1, 1)), steps((2, 2)))
    assert str(parted.culprits) == "0-1"
    assert (parted.step, parted.tensor, parted.others) == (0, "weight", 1)


def test_a_rank_with_fewer_steps_is_compared_as_far_as_it_came():
    assert found(steps((1, 1), (2, 2)), steps((1, 1))) == []


def test_the_tensor_is_that_of_the_end_where_no_more_hashes_were_kept():
    one, other = steps((1, 1), (2, 2), (3, 3), kept=1), steps((1, 1), (2, 4), (5, 3), kept=1)
    (parted,) = found(one, other)
    assert (parted.step, parted.tensor, parted.is_late) == (1, "weight", True)


def test_other_models_are_not_compared():
    assert found(steps((1, 1)), steps((2, 2), number=2)) == []


def test_the_numbers_of_steps_are_told_where_only_the_end_shows_the_difference():
    right = steps((1, 1), (2, 2), (3, 3)), whole((1, 1), (3, 3))
    odd = steps((1, 1), (2, 2)), whole((1, 1), (2, 2))
    (parted,) = found_in(right, odd, right)
    assert str(parted.culprits) == "1"
    assert (parted.step_counts, parted.equal_steps) == ({0: 2, 1: 1, 2: 2}, 1)
    (parted,) = found_in(right, (odd[1],), right)
    assert parted.step_counts == {0: 2, 1: 0, 2: 2}


def test_the_numbers_of_steps_are_told_where_a_step_in_the_middle_is_missing():
    right = steps((1, 1), (2, 2), (3, 3)), whole((1, 1), (3, 3))
    (parted,) = found_in(right, (steps((1, 1), (4, 4)), whole((1, 1), (4, 4))), right)
    assert (parted.step, parted.step_counts) == (1, {0: 2, 1: 1, 2: 2})


def test_other_numbers_of_steps_explain_no_other_rank():
    right = steps((1, 1), (2, 2), (3, 3)), whole((1, 1), (3, 3))
    short = steps((1, 1), (2, 2)), whole((1, 1), (2, 2))
    odd = steps((1, 1), (5, 5), (6, 6)), whole((1, 1), (6, 6))
    (parted,) = found_in(right, short, odd, right)
    assert (str(parted.culprits), parted.step, parted.step_counts) == ("2", 1, {})


def test_other_numbers_of_steps_with_equal_replicas_are_right():
    right = steps((1, 1), (2, 2)), whole((1, 1), (2, 2))
    assert found_in(right, (whole((1, 1), (2, 2)),), right) == []


def test_the_steps_of_a_rank_that_has_failed_are_not_counted():
    right = steps((1, 1), (2, 2), (3, 3)), whole((1, 1), (3, 3))
    assert found_in(right, (steps((1, 1), (2, 2)),), (whole((1, 1), (2, 2)),)) == []


def test_an_optimizer_without_a_tensor():
    part = replace(steps((1, 1), (2, 2)), tensors=("weight",))
    right = steps((1, 1), (2, 2)), whole((1, 1), (2, 2))
    (parted,) = found_in(right, (part, whole((1, 1), (2, 1))), right)
    assert (parted.tensor, str(parted.without_tensor)) == ("bias", "1")


def averaged(first: tuple[int, int], last: tuple[int, int]) -> ReplicaSteps:
    """The parameters of an optimizer whose gradients the code averages, in the same way."""
    return replace(whole(first, last), is_ddp=False)


def test_first_steps_in_different_iterations_are_compared_at_the_end():
    """Ranks take turns to step, and then broadcast."""
    turns = (steps((1, 1), (2, 2)), averaged((1, 1), (3, 3)))
    later = (steps((2, 2), (3, 3)), averaged((2, 2), (3, 3)))
    assert found_in(turns, later) == []
    (parted,) = found_in(turns, (later[0], averaged((2, 2), (3, 4))))
    assert parted.is_of_end
    assert (str(parted.culprits), parted.tensor, parted.others) == ("0-1", "bias", 0)
    assert (str(parted.followers), parted.step_counts) == ("1", {0: 1, 1: 1})
    idle = (averaged((1, 1), (3, 3)),)
    (parted,) = found_in(turns, (later[0], averaged((2, 2), (4, 4))), idle)
    assert (str(parted.culprits), parted.step_counts) == ("1", {0: 1, 1: 1, 2: 0})
    assert found_in(turns, (later[0],)) == []  # the second rank has failed


def test_first_steps_at_other_weights_of_ranks_with_other_numbers_of_steps():
    more = steps((1, 1), (2, 2), (3, 3)), averaged((1, 1), (3, 3))
    fewer = steps((5, 5), (6, 6)), averaged((5, 5), (6, 6))
    (parted,) = found_in(more, fewer)
    assert parted.is_of_end
    assert (parted.followers, parted.step_counts) == (NO_RANKS, {0: 2, 1: 1})
    (parted,) = found_in((steps((1, 1), (2, 2)), averaged((1, 1), (2, 2))), fewer)
    assert (parted.is_of_end, parted.step) == (False, 0)
    own = whole((1, 1), (3, 3)), whole((5, 5), (6, 6))  # DDP: the first weights are compared
    (parted,) = found_in((replace(more[0], is_ddp=True), own[0]), (fewer[0], own[1]))
    assert not parted.is_of_end


def test_an_average_by_hand():
    right = steps((1, 1), (2, 2)), averaged((1, 1), (2, 2))
    part = replace(right[0], tensors=("weight",))
    assert found_in(right, (part, right[1])) == []
    (parted,) = found_in(right, (part, averaged((1, 1), (2, 1))), right)
    assert (parted.tensor, str(parted.without_tensor)) == ("bias", "1")
    assert found_in(right, (right[0], averaged((1, 1), (5, 5)))) == []  # after the last step
    fewer = steps((1, 1)), averaged((1, 1), (1, 1))
    (parted,) = found_in(right, fewer, right)
    assert parted.step_counts == {0: 1, 1: 0, 2: 1}
    other = replace(averaged((3, 3), (4, 4)), tensors=("weight", "other"))
    assert found_in(right, (part, other)) == []


def test_weights_that_are_changed_after_the_last_step():
    right = steps((1, 1), (2, 2)), whole((1, 1), (2, 2))
    (parted,) = found_in(right, (right[0], whole((1, 1), (2, 3))), right)
    assert (parted.is_after, parted.is_stepped, parted.tensor) == (True, True, "bias")


def test_a_model_that_parts_in_a_step_is_told_once():
    right = steps((1, 1), (2, 2)), whole((1, 1), (2, 2))
    (parted,) = found_in(right, (steps((1, 1), (3, 3)), whole((1, 1), (3, 3))), right)
    assert (parted.step, parted.is_after, parted.was_equal) == (1, False, True)


def test_replicas_that_part_and_are_equal_again():
    """Only values that a step has used, or that are there at the end, count."""
    one, other = whole((1, 1), (2, 2)), whole((3, 3), (2, 2))
    assert found(one, other) == []
    right = steps((1, 1), (2, 2)), one
    assert found_in(right, (right[0], other)) == []
    first, second = ((1, 1), (2, 2), (4, 4), (5, 5)), ((1, 1), (3, 3), (4, 4), (5, 6))
    assert found(steps(*first[:3]), steps(*second[:3])) == []  # and the cell has failed
    (parted,) = found(steps(*first), steps(*second))
    assert (parted.step, parted.tensor) == (3, "bias")


def test_weights_that_differ_only_in_a_backward_pass_and_part_later():
    """What differed before gradients were sent is no reason: the steps began with equal weights."""
    (parted,) = found_in(
        (steps((1, 1), (2, 2)), whole((5, 5), (2, 2))),
        (steps((1, 1), (2, 2)), whole((6, 6), (2, 3))),
    )
    assert (parted.is_after, parted.tensor, parted.others) == (True, "bias", 0)
    (parted,) = found_in(  # one of the ranks has made no step
        (steps((1, 1), (2, 2)), whole((5, 5), (2, 2))), (whole((6, 6), (2, 3)),)
    )
    assert (parted.step, parted.is_after) == (0, False)


def test_the_line_of_each_rank():
    """One rank steps more, in another line."""
    more = replace(steps((1, 1), (3, 3)), sites=(Site(line=5),))
    (parted,) = found(more, steps((1, 1), (2, 2)))
    assert {rank: site.line for rank, site in parted.sites.items()} == {0: 5, 1: 7}


def test_the_line_in_which_one_rank_alone_steps_a_part():
    alone = replace(steps((1, 1), (2, 1)), tensors=("weight",), sites=(Site(line=5),))
    then = replace(steps((2, 1), (3, 2)), optimizer_number=1)
    (parted,) = found_in(
        (alone, then, whole((1, 1), (3, 2))), (steps((1, 1), (2, 2)), whole((1, 1), (2, 2)))
    )
    assert parted.alone is not None
    assert (parted.alone.site.line, parted.site.line, parted.tensor) == (5, 7, "weight")


def test_the_line_in_which_one_rank_alone_makes_the_last_step():
    more = replace(
        steps((1, 1), (2, 2), (3, 2)),
        sites=(Site(line=7), Site(line=9)),
        site_of_step=bytes([0, 0, 1]),
    )
    (parted,) = found_in(
        (more, whole((1, 1), (3, 2))), (steps((1, 1), (2, 2)), whole((1, 1), (2, 2)))
    )
    assert (parted.step_counts, parted.site.line) == ({0: 2, 1: 1}, 9)
    assert {rank: site.line for rank, site in parted.sites.items()} == {0: 9, 1: 7}


def test_a_model_that_nothing_steps_while_optimizers_step_others():
    """Each rank may compute its weights from others that optimizers step."""
    own = [replace(whole((n, n), (n + 2, n)), may_be_own=True) for n in (1, 2)]
    assert found(*own) == []


def test_ranks_that_all_differ():
    (parted,) = found(*(steps((1, 1), (number, number)) for number in (2, 3, 4)))
    assert parted.all_differ
    (parted,) = found(*(steps((1, 1), (number, number)) for number in (2, 3, 3)))
    assert not parted.all_differ


def test_models_that_differ_before_a_step_whose_gradients_were_looked_at_are_of_each_rank():
    own = [replace(steps((n, n), (n + 2, n)), may_be_own=True) for n in (1, 2)]
    assert found(*own) == []
    equal = [replace(steps((1, 1), (n, 1)), may_be_own=True, left_out=("weight",)) for n in (1, 2)]
    (parted,) = found(*equal)
    assert (parted.step, parted.tensor) == (1, "weight")


def warmed_up(
    *rows: tuple[int, int], start: tuple[int, int], first: tuple[int, int] = (1, 1)
) -> ReplicaSteps:
    """One step alone in line 4, then those of all ranks in line 7, which begin with ``start``."""
    alone = steps(first, *rows)
    (begin,) = steps(start).starts
    return replace(
        alone,
        sites=(Site(line=4), Site(line=7)),
        site_of_step=bytes([0, 0] + [1] * (len(rows) - 1)),
        starts=(*alone.starts, replace(begin, step=2)),
    )


def test_a_step_of_one_rank_alone_whose_bias_is_not_sent():
    """Rank 0 sends the weight; the step of all ranks begins with its own bias."""
    alone = warmed_up((2, 2), (3, 3), start=(2, 2))
    (parted,) = found(alone, steps((2, 1), (4, 4)))
    assert (parted.is_before, parted.step, parted.tensor, parted.others) == (True, 1, "bias", 0)
    assert parted.site.line == 7
    assert parted.alone is not None
    assert (str(parted.alone.ranks), parted.alone.site.line) == ("0", 4)
    assert str(parted.in_common) == "0-1"


def test_a_step_of_one_rank_alone_whose_weights_are_sent():
    assert found(warmed_up((2, 2), (3, 3), start=(2, 2)), steps((2, 2), (3, 3))) == []


def test_weights_that_no_step_alone_has_left_are_told_without_it():
    """Rank 1 changes the bias that rank 0 has sent; or rank 0 changes its own once more."""
    (parted,) = found(warmed_up((2, 2), (3, 3), start=(2, 2)), steps((2, 9), (4, 4)))
    assert (parted.is_before, parted.tensor, parted.alone) == (True, "bias", None)
    (parted,) = found(warmed_up((2, 2), (3, 3), start=(2, 9)), steps((2, 1), (4, 4)))
    assert (parted.is_before, parted.tensor, parted.alone) == (True, "bias", None)


def test_a_state_that_differs_before_a_step():
    def with_state(of: ReplicaSteps, *numbers: int) -> ReplicaSteps:
        starts = zip(of.starts, numbers, strict=True)
        return replace(
            of,
            states=("momentum_buffer of weight",),
            starts=tuple(replace(each, states=digest(number)) for each, number in starts),
        )

    alone = with_state(warmed_up((2, 2), (3, 3), start=(2, 2)), 0, 5)
    (parted,) = found(alone, with_state(steps((2, 2), (4, 4)), 0))
    assert (parted.is_before, parted.tensor, parted.states) == (True, "", alone.states)
    assert parted.alone is not None
    assert parted.alone.site.line == 4
    earlier = with_state(steps((1, 1), (2, 2)), 1), with_state(steps((1, 1), (3, 3)), 2)
    (parted,) = found(*earlier)  # of an earlier cell
    assert (parted.is_before, parted.states, parted.alone) == (True, alone.states, None)
    of_one = replace(earlier[1], states=("momentum_buffer of bias",))
    (parted,) = found(earlier[0], of_one)  # an optimizer that shards its state
    assert (parted.is_before, parted.states) == (False, ())


def test_a_step_alone_in_a_function_that_all_ranks_call_later():
    alone = replace(
        warmed_up((2, 2), (3, 3), start=(2, 2)),
        sites=(Site(line=2), Site(line=2)),
        callers=((Site(line=4),), (Site(line=7),)),
    )
    other = replace(steps((2, 1), (4, 4)), sites=(Site(line=2),), callers=((Site(line=7),),))
    (parted,) = found(alone, other)
    assert parted.alone is not None
    assert (parted.alone.site.line, parted.site.line, parted.tensor) == (4, 7, "bias")


def test_the_two_sides_of_an_if_are_the_same_step():
    one, other = warmed_up((2, 2), (3, 3), start=(2, 2)), warmed_up((2, 2), (3, 4), start=(2, 2))
    other = replace(other, sites=(Site(line=5), Site(line=7)))
    (parted,) = found(one, other)
    assert (parted.step, parted.in_common, parted.alone) == (2, NO_RANKS, None)


def test_gradients_of_ddp_at_different_weights_that_nothing_updates():
    (parted,) = found(whole((1, 1), (1, 1)), whole((2, 1), (2, 1)))
    assert (parted.step, parted.tensor) == (0, "weight")
    assert found(averaged((1, 1), (1, 1)), averaged((2, 1), (2, 1))) == []


# --- more steps than hashes are taken of ----------------------------------------------------------


def cut(*rows: tuple[int, int], end: tuple[int, int], later: int) -> ReplicaSteps:
    """Steps after ``rows`` are only counted."""
    return replace(steps(*rows), newest=b"".join(map(digest, end)), later_steps=later)


def test_replicas_that_part_in_a_step_without_hashes():
    rows = (1, 1), (2, 2)
    (parted,) = found_in(
        (cut(*rows, end=(8, 8), later=5), whole((1, 1), (8, 8))),
        (cut(*rows, end=(9, 8), later=5), whole((1, 1), (9, 8))),
    )
    assert (parted.is_after, parted.tensor, parted.steps.later_steps) == (True, "weight", 5)
    words = words_of(parted)
    end = "at the end of the cell: its replicas were equal after step 1 of SGD."
    assert words.headline.endswith(end)
    assert "the first 1 steps" in words.reason


def test_replicas_that_are_equal_again_after_steps_without_hashes():
    right = cut((1, 1), (2, 2), end=(8, 8), later=5)
    assert found(right, cut((1, 1), (2, 5), end=(8, 8), later=5)) == []


def test_ranks_that_make_other_numbers_of_steps_without_hashes():
    rows = (1, 1), (2, 2)
    end = whole((1, 1), (8, 8))
    states = {"states": ("momentum_buffer of weight",), "state_hashes": digest(1)}
    few = replace(cut(*rows, end=(8, 8), later=5), **states)
    more = replace(cut(*rows, end=(8, 8), later=6), **{**states, "state_hashes": digest(2)})
    assert found_in((few, end), (more, end)) == []

    (parted,) = found_in((few, end), (cut(*rows, end=(9, 8), later=6), whole((1, 1), (9, 8))))
    assert parted.step_counts == {0: 6, 1: 7}
    assert parted.equal_steps == 1


# --- the next step --------------------------------------------------------------------------------


def test_the_next_step_names_the_steps_between_which_replicas_have_parted():
    right = replace(steps((1, 1), (2, 2), (3, 3)), is_ddp=True)
    wrong = replace(steps((1, 1), (2, 2), (9, 9)), is_ddp=True)
    (parted,) = found(right, wrong)
    step = words_of(parted).next_step
    assert "loads or changes between steps 1 and 2, both in line 7. `%ddp diff`" in step
    assert "one that leaves out parameters without `find_unused_parameters=True`" in step
    (parted,) = found(right, wrong, right)
    odd = "Look for what perhaps only rank 1 did between steps 1 and 2, both in line 7: a forward"
    assert words_of(parted).next_step.startswith(odd)
    lines = Site(line=7), Site(line=9)
    right, wrong = (
        replace(each, sites=lines, site_of_step=bytes([0, 0, 1])) for each in (right, wrong)
    )
    (parted,) = found(right, wrong, right)
    assert "rank 1 did between step 1 (line 7) and step 2 (line 9): " in words_of(parted).next_step


def test_a_step_in_a_function_is_told_with_the_line_that_calls_it():
    right, wrong = steps((1, 1), (2, 2)), steps((1, 1), (9, 9))
    around = (Site(line=5, function="update"), Site(line=12))
    right, wrong = (replace(each, callers=(around,)) for each in (right, wrong))
    (parted,) = found(right, wrong)
    words = words_of(parted)
    assert "not averaged before line 7 (called in line 12), or" in words.next_step
    assert [line.site.line for line in words.code] == [7, 12]

    right_of_cell, wrong_of_cell = (
        replace(each, callers=((Site(line=2, cell=9, file="<cell 9>"),),))
        for each in (right, wrong)
    )
    (parted,) = found(right_of_cell, wrong_of_cell)
    assert "before line 7 (called at cell [9], line 2), or" in words_of(parted).next_step

    other = replace(wrong, callers=((Site(line=14),),))
    (parted,) = found(right, other)
    assert "not averaged before line 7, or" in words_of(parted).next_step


def test_steps_of_one_rank_alone_change_the_state_of_the_optimizer():
    end = whole((1, 1), (8, 8)), whole((1, 1), (9, 8))
    few, more = steps((1, 1), (2, 2)), steps((1, 1), (2, 2), (9, 8))
    ((parted,), (stateless,)) = (
        found_in((replace(few, states=names), end[0]), (replace(more, states=names), end[1]))
        for names in (("momentum_buffer of weight",), ())
    )
    meant = "the same state of SGD ('momentum_buffer of weight') after them."
    assert meant in words_of(parted).next_step
    assert "state of SGD" not in words_of(stateless).next_step
