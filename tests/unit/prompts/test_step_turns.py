"""One prompt for all ranks that have stopped before an operation."""

import msgspec

from nbddp.controller.diagnosis import PerRank, Predicate, RankVerb, Report
from nbddp.controller.prompts.step_turns import StepAnswer, StepTurns
from nbddp.wire.flight_recorder import GroupInfo, Mismatch, Operation, Signature, Site
from nbddp.wire.messages import InputRequest
from nbddp.wire.rank_set import RankSet

WAITS = Predicate(RankVerb.WAITS, " in all_reduce #1")


class Cell:
    """A cell of four ranks, and a clock."""

    def __init__(self) -> None:
        self.turns = StepTurns(RankSet.all(4), world_size=4, meshes={})
        self.now = 100.0
        self.number = 0

    def stop(
        self, *ranks: int, op: str = "all_reduce", line: int = 3, at: tuple[int, ...] = (),
        group: GroupInfo | None = None, number: int = 7, created: int = 0,
    ) -> list[str]:  # fmt: skip
        """Let ranks stop, and return what they are told before the user is asked."""
        told = []
        for rank in ranks:
            self.number += 1
            operation = Operation(
                record_id=0,
                pg_id="0",
                signature=Signature("collective", op, ((2,),), ("float32",), reduce_op="SUM"),
                state="scheduled",
                collective_seq_id=number,
                time_created_ns=created,
                site=Site(cell=5, line=line, source=f"source {line}"),
            )
            request = InputRequest(
                run_id="r", rank=rank, question=self.number, prompt="", password=False,
                stop=operation, break_points=at, group=group,
            )  # fmt: skip
            told.append(self.turns.add(request, self.number, self.now))
        return [str(reply) for reply in told if reply is not None]

    def is_due(self) -> bool:
        return self.turns.due(self.now) is not None

    def say(self, line: str) -> StepAnswer:
        assert self.is_due()
        return self.turns.answer(line, self.now)

    def table(self, others: dict[int, PerRank] | None = None) -> list[str]:
        others = others or {}
        return [" ".join(row.split()) for row in self.turns.table(others).splitlines()]


def sent(answer: StepAnswer) -> list[tuple[int, str]]:
    return [(request.rank, str(reply)) for request, reply in answer.replies]


def test_the_prompt_comes_when_all_ranks_have_stopped():
    cell = Cell()
    cell.stop(0, 1, 2)
    assert not cell.is_due()
    cell.stop(3)
    assert cell.is_due()
    assert cell.table() == [
        "ranks 0-3 before all_reduce #7 of float32[2] with SUM cell [5], line 3: `source 3`"
    ]


def test_the_other_call_of_a_mismatch_stands_in_the_row():
    cell = Cell()
    cell.stop(0, 1, 2)
    operation = cell.turns.due(cell.now + 9)
    assert operation is not None
    mine = operation.request.stop
    assert mine is not None
    theirs = msgspec.structs.replace(
        mine, signature=msgspec.structs.replace(mine.signature, input_sizes=((4,),))
    )
    wrong = Mismatch(rank=3, peer=1, mine=mine, theirs=theirs, fields=("input_sizes",))
    request = msgspec.structs.replace(operation.request, rank=3, mismatch=wrong)
    cell.turns.add(request, 9, cell.now)
    assert cell.table()[-1] == (
        "rank 3 before all_reduce #7 of float32[2] with SUM; rank 1 called all_reduce of "
        "float32[4] cell [5], line 3: `source 3`"
    )
    (tell,) = cell.say("waits").tells
    assert tell.startswith("rank 3 has stopped before a mismatch: step or continue raises it")


def test_a_mismatch_that_other_machines_have_seen_is_not_skipped():
    cell = Cell()
    cell.stop(0, 1, 2)
    prompt = cell.turns.due(cell.now + 9)
    assert prompt is not None
    request = msgspec.structs.replace(prompt.request, rank=3, is_final=True)
    cell.turns.add(request, 9, cell.now)
    answer = cell.say("skip -r 3")
    assert not answer.replies
    assert answer.tells == (
        "all_reduce #7 cannot be skipped on rank 3: other machines have compared it. "
        "Next: continue raises the mismatch; or quit",
    )
    assert cell.say("skip -r 0-2").replies


def test_stops_of_a_group_that_is_freed_are_dropped():
    cell = Cell()
    cell.stop(0, 1, 2, 3)
    assert cell.turns.end_groups(["another"]) == []
    assert cell.is_due()
    assert [request.rank for request in cell.turns.end_groups(["0"])] == [0, 1, 2, 3]
    assert not cell.is_due()


def test_a_rank_that_has_raised_or_exited_is_shown_so():
    cell = Cell()
    cell.stop(0, 1)
    cell.turns.leave(2, cell.now, "ValueError")
    cell.turns.leave(3, cell.now, "")
    assert cell.turns.needs_others
    assert cell.table()[1:] == ["rank 2 raised ValueError", "rank 3 exited"]


def test_ranks_that_have_ended_the_cell_are_not_awaited():
    cell = Cell()
    cell.stop(0, 1)
    cell.turns.leave(2, cell.now)
    cell.turns.leave(3, cell.now)
    assert cell.is_due()


def test_a_rank_that_runs_on_is_awaited_for_some_seconds():
    cell = Cell()
    cell.stop(0, 1, 2)
    cell.now += 3.1
    assert cell.is_due()
    place = PerRank(3, "running", WAITS, Site(cell=5, line=9, source="source 9"))
    row = "rank 3 waits in all_reduce #1 cell [5], line 9: `source 9`"
    assert cell.table({3: place})[-1] == row
    assert cell.table()[-1] == "rank 3 runs"


def test_ranks_that_compute_for_long_are_shown_together():
    cell = Cell()
    cell.stop(0, 1, 2, 3)
    cell.say("step")
    cell.now += 60
    cell.stop(0)
    assert not cell.is_due()
    cell.now += 0.5
    cell.stop(1, 2, 3)
    assert cell.is_due()


def test_a_rank_that_waits_for_a_stopped_one_is_not_awaited():
    cell = Cell()
    cell.stop(0, 1, 2, 3)
    assert sent(cell.say("step -r 0,1")) == [(0, "step 1"), (1, "step 1")]
    assert not cell.is_due()
    places = {rank: PerRank(rank, "running", WAITS) for rank in (0, 1)}
    cell.turns.note(Report("r", ranks=places), cell.now)
    assert not cell.is_due()
    cell.now += 0.4
    assert cell.is_due()


def test_the_odd_rank_has_a_row_of_its_own():
    cell = Cell()
    cell.stop(0, 1, 3)
    cell.stop(2, op="broadcast", line=8)
    assert [row.split(" of ")[0] for row in cell.table()] == [
        "ranks 0-1,3 before all_reduce #7",
        "rank 2 before broadcast #7",
    ]


def test_two_threads_of_a_rank_are_two_rows_and_both_step():
    cell = Cell()
    cell.stop(0, 1, 2, 3)
    cell.stop(0, line=9)
    assert len(cell.table()) == 2
    assert [rank for rank, _ in sent(cell.say("p x"))] == [0, 1, 2, 3]
    cell = Cell()
    cell.stop(0, 1, 2, 3)
    cell.stop(0, line=9)
    assert sorted(rank for rank, _ in sent(cell.say("step"))) == [0, 0, 1, 2, 3]


def test_a_rank_that_has_not_stopped_cannot_be_sent_on():
    cell = Cell()
    cell.stop(0, 1, 2, 3)
    cell.say("step -r 0")
    cell.now += 3.1
    answer = cell.say("step -r 0-1")
    assert (answer.replies, answer.tells) == ((), ("rank 0 is not stopped; ranks 1-3 are",))


def test_output_of_a_look_is_held_back_until_all_have_answered():
    cell = Cell()
    cell.stop(0, 1, 2, 3)
    cell.say("p x")
    assert cell.turns.gathered == RankSet.all(4)
    cell.stop(3, 1, 0)
    assert cell.turns.gathered == RankSet.of([2])
    cell.stop(2)
    assert not cell.turns.gathered


def test_the_table_comes_after_a_step_and_not_after_a_look():
    cell = Cell()
    cell.stop(0, 1, 2, 3)
    prompt = cell.turns.due(cell.now)
    assert prompt is not None
    assert prompt.wants_table
    assert prompt.tells
    cell.say("p x")
    cell.stop(0, 1, 2, 3)
    prompt = cell.turns.due(cell.now)
    assert prompt is not None
    assert (prompt.wants_table, prompt.tells) == (False, ())
    cell.say("step")
    cell.stop(0, 1, 2, 3)
    prompt = cell.turns.due(cell.now)
    assert prompt is not None
    assert prompt.wants_table


def test_no_prompt_comes_while_a_debugger_is_open():
    cell = Cell()
    cell.stop(0, 1, 2, 3)
    assert sent(cell.say("rank 2")) == [(2, "debug")]
    cell.now += 100
    assert not cell.is_due()
    cell.stop(2)
    assert cell.is_due()


def test_no_prompt_comes_while_ranks_are_freed_after_an_error():
    cell = Cell()
    cell.stop(3)
    cell.now += 100
    cell.turns.be_patient(cell.now)  # rank 2 goes on from the debugger of its error
    assert not cell.is_due()
    cell.now += 2.9
    cell.turns.leave(2, cell.now, "ValueError")
    waiting = {rank: PerRank(rank, "running", WAITS) for rank in (0, 1)}
    cell.turns.note(Report("r", ranks=waiting), cell.now)
    cell.now += 2.9
    assert not cell.is_due()
    cell.turns.leave(0, cell.now, "CollectiveAbortedError")
    assert not cell.is_due()
    cell.turns.leave(1, cell.now, "CollectiveAbortedError")
    assert cell.is_due()  # no other rank can free it


def test_an_interrupt_drops_the_stops_before_it():
    cell = Cell()
    cell.stop(0, 1)
    assert [request.rank for request in cell.turns.drop(1)] == [0]
    assert cell.turns.ranks == RankSet.of([1])


def test_a_row_names_the_break_point():
    cell = Cell()
    cell.stop(2, at=(1, 4))
    assert "with SUM (break points 1, 4) cell [5]" in cell.table()[-1]


def test_a_held_rank_stays_where_the_others_go_on():
    cell = Cell()
    cell.stop(0, 1, 2, 3)
    assert cell.say("hold -r 1").tells == (
        "rank 1 is held: only a command with -r, or release, lets it go",
    )
    assert [rank for rank, _ in sent(cell.say("p x"))] == [0, 1, 2, 3]
    cell.stop(0, 1, 2, 3)
    assert [rank for rank, _ in sent(cell.say("step"))] == [0, 2, 3]
    assert cell.table()[-1].startswith("rank 1 held before all_reduce #7")
    cell.now += 3.1
    assert cell.say("step").tells == (
        "rank 1 is held, and no other rank has stopped. Next: release, or -r RANKS",
    )
    assert sent(cell.say("step -r 1")) == [(1, "step 1")]
    cell.stop(1)
    cell.now += 3.1
    assert cell.say("release").tells == ("no rank is held",)
    assert sent(cell.say("continue")) == [(1, "continue")]


def _cell_with_rank_0_inside() -> Cell:
    cell = Cell()
    cell.stop(0, 1, 2, 3)
    cell.say("step -r 0")
    cell.now += 3.1
    return cell


def test_continue_lets_ranks_inside_an_operation_go_too():
    cell = _cell_with_rank_0_inside()
    assert [rank for rank, _ in sent(cell.say("c"))] == [1, 2, 3]
    assert cell.stop(0) == ["continue"]
    assert cell.stop(0) == ["continue"]  # another thread
    assert not cell.turns.ranks
    assert cell.stop(0, at=(1,)) == []
    assert cell.turns.ranks == RankSet.of([0])
    cell.now += 3.1
    cell.say("step")
    assert cell.stop(0) == []


def test_a_rank_that_continue_has_let_go_can_be_held():
    cell = _cell_with_rank_0_inside()
    cell.say("c")
    cell.stop(1, at=(1,))
    cell.now += 3.1
    cell.say("hold -r 0")
    assert cell.stop(0) == []


def test_continue_of_some_ranks_lets_no_other_go():
    cell = _cell_with_rank_0_inside()
    cell.say("c -r 1-3")
    assert cell.stop(0) == []


def test_continue_leaves_the_stops_that_the_user_has_chosen():
    cell = Cell()
    cell.stop(0, 1, 2, 3)
    cell.say("until 9 -r 0")
    cell.now += 3.1
    cell.say("step -r 1")
    cell.now += 3.1
    cell.say("hold -r 1")
    assert [rank for rank, _ in sent(cell.say("c"))] == [2, 3]
    assert cell.stop(0, number=9) == []
    assert cell.stop(1) == []


def test_until_goes_to_a_later_collective_only():
    cell = Cell()
    cell.stop(0, 1, 2, 3)
    assert cell.say("until 7").tells == ("ranks 0-3 are at all_reduce #7. Next: until 8, or more",)
    assert cell.say("until 7 -r 1").tells == ("rank 1 is at all_reduce #7. Next: until 8, or more",)
    assert sent(cell.say("until 8 -r 0")) == [(0, "until 8")]


def test_an_operation_that_fills_its_tensor_is_not_skipped():
    cell = Cell()
    cell.stop(0, 1, 2)
    cell.stop(3, op="all_gather")
    assert cell.say("skip").tells[0].startswith("all_gather fills a tensor that would hold no")
    assert sent(cell.say("skip -r 0,1")) == [(0, "skip"), (1, "skip")]


def test_the_group_of_an_operation_is_named():
    cell = Cell()
    cell.stop(0, 1, group=GroupInfo.of("3:5c", "3", "pair", ranks=(0, 1)))
    assert cell.table()[0].startswith(
        "ranks 0-1 before all_reduce #7 of float32[2] with SUM in group 'pair' (ranks 0-1) cell [5]"
    )


def test_a_notice_is_taken_back_when_a_rank_that_waited_has_stopped():
    cell = Cell()
    assert not cell.turns.drop_notice()
    waiting = Report("r", ranks={0: PerRank(0, "running", WAITS)})
    cell.turns.note(waiting, cell.now)
    cell.stop(1)
    assert not cell.turns.drop_notice()  # it still holds
    cell.stop(0)
    assert cell.turns.drop_notice()
    assert not cell.turns.drop_notice()
    cell.turns.note(waiting, cell.now)  # it was made before
    assert cell.turns.drop_notice()


def test_a_retry_keeps_the_rank_and_shows_a_new_table():
    cell = Cell()
    cell.stop(0, 1, 2, 3)
    answer = cell.say("retry dist.barrier() -r 1,2")
    assert sent(answer) == [(1, "retry dist.barrier()"), (2, "retry dist.barrier()")]
    assert cell.turns.gathered == RankSet.of([1, 2])
    cell.stop(1, 2, op="barrier")
    prompt = cell.turns.due(cell.now)
    assert prompt is not None
    assert prompt.wants_table
    assert [row.label for row in cell.turns.rows({})] == ["all_reduce #7", "barrier #7"]


def test_a_retry_that_stops_at_the_same_number_says_so_until_the_rank_goes_on():
    cell = Cell()
    cell.stop(0, 1, 2, 3, at=(1,), created=50)
    cell.say("retry -r 2-3")
    cell.stop(2, at=(1,), created=60)
    cell.stop(3, at=(1,), created=50)  # the call was refused
    assert len(cell.table()) == 1  # the row stays whole
    prompt = cell.turns.due(cell.now)
    assert prompt is not None
    assert prompt.tells == (
        "rank 2 stops at the same operation again: `retry` made the call again, and step issues it",
    )
    cell.turns.answer("step -r 2", cell.now)
    cell.stop(2, number=8, at=(1,), created=70)
    prompt = cell.turns.due(cell.now)
    assert prompt is not None
    assert prompt.tells == ()


def test_until_names_the_ranks_that_can_go_alone():
    cell = Cell()
    cell.stop(0, 1, number=1)
    cell.stop(2, 3, op="barrier", number=16)
    assert cell.say("until 3").tells == (
        "ranks 2-3 are at barrier #16. Next: until 3 -r 0-1 for ranks 0-1 alone; or until 17, or "
        "more",
    )


def test_a_collective_that_until_has_named_and_that_never_came():
    cell = Cell()
    cell.stop(0, 1, 2, 3)
    cell.say("until 99")
    cell.stop(3)  # at a break point
    for rank in (0, 1):
        cell.turns.leave(rank, cell.now)
    cell.turns.leave(2, cell.now, "ValueError")
    assert cell.turns.missed(lambda: {0: {"0": 12}}) == (
        "until 99: rank 0 ended the cell before it; the last collective of the group was #12",
        "until 99: rank 1 ended the cell before it",
    )
