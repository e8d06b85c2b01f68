"""One prompt for all ranks of a deadlocked cell, before anybody is freed."""

import pytest

from nbddp.controller.diagnosis import Finding, PerRank, Predicate, RankVerb, Report
from nbddp.controller.diagnosis.report import Kind
from nbddp.controller.prompts.step_commands import (
    Free,
    Look,
    Send,
    Sight,
    StepCommand,
    Tell,
)
from nbddp.controller.prompts.step_turns import StepAnswer
from nbddp.controller.prompts.stuck_commands import STUCK_HELP, parse_stuck
from nbddp.controller.prompts.stuck_turns import StuckTurns
from nbddp.wire.flight_recorder import Site
from nbddp.wire.messages import InputRequest
from nbddp.wire.rank_set import RankSet
from nbddp.wire.step_replies import StepReply, StepVerb


@pytest.mark.parametrize(
    ("line", "command"),
    {
        "p x": Send(StepReply(StepVerb.PRINT, code="x")),
        "print x.sum() -r 1": Send(StepReply(StepVerb.PRINT, code="x.sum()"), RankSet.of([1])),
        "where": Send(StepReply(StepVerb.WHERE)),
        "ranks": Look(Sight.TABLE),
        "waits": Look(Sight.WAITS),
        "trace": Look(Sight.TRACE),
        "free": Free(is_last=False),
        "quit": Free(is_last=True),
        " q ": Free(is_last=True),
        "help": Tell(STUCK_HELP),
    }.items(),
)
def test_a_line_has_one_meaning(line: str, command: StepCommand):
    assert parse_stuck(line, 4, {}) == command


@pytest.mark.parametrize(
    ("line", "words"),
    {
        "": "an empty line does nothing here. Legal: print EXPR",
        "step": "`step` cannot let a rank go",
        "c": "`c` cannot let a rank go",
        "until 3": "`until` cannot let a rank go",
        "run x = 3": "`run` would change a rank that may go on meanwhile. Legal: print EXPR",
        "rank 2": "`rank` would change a rank",
        "p x = 3": "`p` takes an expression: ",
        "show": "'show' is no command here. Legal: print EXPR",
        "p x -r 7": "ranks 0 to 3",
    }.items(),
)
def test_other_lines_say_what_is_legal(line: str, words: str):
    command = parse_stuck(line, 4, {})
    assert isinstance(command, Tell)
    assert words in command.text


def test_show_draws_the_tensor():
    command = parse_stuck("show x[0]", 4, {})
    assert isinstance(command, Send)
    assert command.reply.code == "nbddp.show(x[0], title='x[0]') and None"


ALL = RankSet.all(4)


class Cell:
    """A cell of four ranks, deadlocked, and a clock."""

    def __init__(
        self, op: str = "all_reduce", kind: Kind = "missing-rank", ranks: RankSet = ALL
    ) -> None:
        self.turns = StuckTurns(ranks, world_size=4, meshes={})
        self.now = 100.0
        self.number = 0
        finding = Finding(
            kind=kind,
            proven=True,
            culprits=RankSet.of([0]),
            waiting=RankSet.of([1, 2, 3]),
            headline="Rank 0 never called all_reduce #4; ranks 1-3 wait for it.",
            reason="",
            next_step="",
            op=op,
        )
        self.turns.hold(Report("r", findings=(finding,)))

    def ask(self, *ranks: int) -> None:
        for rank in ranks:
            self.number += 1
            request = InputRequest(
                run_id="r", rank=rank, question=self.number, prompt="", password=False,
                is_stuck=True,
            )  # fmt: skip
            self.turns.add(request, self.number, self.now)

    def say(self, line: str) -> StepAnswer:
        assert self.turns.due(self.now) is not None
        return self.turns.answer(line, self.now)


def test_the_headline_and_the_places_of_all_ranks_come_first():
    cell = Cell()
    cell.turns.leave(0, cell.now)
    cell.ask(1, 2, 3)
    assert cell.turns.due(cell.now) is None  # a rank that has ended the cell is asked, too
    cell.ask(0)
    prompt = cell.turns.due(cell.now)
    assert prompt is not None
    assert prompt.wants_table
    assert "no rank is freed yet" in prompt.tells[0]
    assert prompt.tells[1:] == ("a tensor of an unfinished operation may be half written",)
    waits = Predicate(RankVerb.WAITS, " in all_reduce #4")
    site = Site(cell=5, line=3, source="dist.all_reduce(x)")
    places = {rank: PerRank(rank, "running", waits, site) for rank in (1, 2, 3)}
    assert cell.turns.table(places).splitlines() == [
        "Deadlock: rank 0 never called all_reduce #4; ranks 1-3 wait for it.",
        "rank 0     has finished the cell",
        "ranks 1-3  wait in all_reduce #4  cell [5], line 3: `dist.all_reduce(x)`",
    ]


@pytest.mark.parametrize(
    ("kind", "question"),
    [
        ("missing-rank", "(deadlock) "),
        ("store-wait", "(deadlock) "),
        ("mismatched-collective", "(mismatch) "),
    ],
)
def test_the_question_says_what_was_proven(kind: Kind, question: str):
    cell = Cell(kind=kind)
    cell.ask(0, 1, 2, 3)
    prompt = cell.turns.due(cell.now)
    assert prompt is not None
    assert prompt.request.prompt == question


def test_a_barrier_writes_no_tensor():
    cell = Cell(op="barrier")
    cell.ask(0, 1, 2, 3)
    prompt = cell.turns.due(cell.now)
    assert prompt is not None
    assert len(prompt.tells) == 1


def test_free_lets_all_ranks_go_and_is_passed_on():
    cell = Cell()
    cell.ask(0, 1, 2, 3)
    answer = cell.say("free")
    assert [(request.rank, str(reply)) for request, reply in answer.replies] == [
        (rank, "leave") for rank in range(4)
    ]
    assert answer.frees == Free(is_last=False)
    assert not cell.turns.is_held


def test_a_rank_that_does_not_answer_is_named():
    cell = Cell()
    cell.ask(0, 1, 2, 3)
    cell.say("p x")
    cell.ask(0, 1, 3)
    assert cell.turns.due(cell.now) is None
    cell.now += 3.1
    prompt = cell.turns.due(cell.now)
    assert prompt is not None
    assert not prompt.wants_table
    assert prompt.tells == ("rank 2 has not answered yet",)
    assert cell.turns.answer("p x -r 2", cell.now).tells == (
        "rank 2 cannot be asked; ranks 0-1,3 can",
    )


def test_a_rank_outside_of_the_cell_is_not_in_the_table_as_finished():
    cell = Cell(ranks=RankSet.all(3))
    cell.turns.leave(0, cell.now)
    cell.ask(0, 1, 2)
    idle = PerRank(3, "idle", Predicate(RankVerb.TAKES_NO_PART))
    assert cell.turns.due(cell.now) is not None
    _, *rows = cell.turns.table({3: idle}).splitlines()
    assert rows[0].split() == ["rank", "0", "has", "finished", "the", "cell"]
    assert rows[-1].split() == ["rank", "3", "takes", "no", "part", "in", "this", "cell"]
    assert cell.say("p x -r 3").tells == (
        "rank 3 takes no part in this cell; ranks 0-2 can be asked",
    )


def test_a_finished_rank_is_told_beside_values_from_inside_the_cell():
    cell = Cell()
    cell.turns.leave(0, cell.now)
    cell.turns.leave(2, cell.now)
    for line, tells in {
        "p x": ("ranks 0,2 have finished the cell: their values are from after it",),
        "where": (),
        "p x -r 0,1": ("rank 0 has finished the cell: its value is from after it",),
        "p x -r 0": (),
        "p x -r 1": (),
    }.items():
        cell.ask(0, 1, 2, 3)
        cell.say(line)
        cell.ask(0, 1, 2, 3)
        prompt = cell.turns.due(cell.now)
        assert prompt is not None
        assert prompt.tells == tells, line


def test_a_rank_whose_process_has_ended_is_not_awaited():
    cell = Cell()
    cell.ask(0, 1, 2)
    cell.turns.lose(3, cell.now)
    assert cell.turns.due(cell.now) is not None


def test_an_interrupt_ends_the_prompt_of_all_ranks():
    cell = Cell()
    cell.ask(0, 1, 2, 3)
    assert [request.rank for request in cell.turns.drop(2)] == [0, 1, 2, 3]
    assert not cell.turns.is_held
