"""The debuggers of ranks are asked one at a time, and the user chooses which."""

from nbddp.controller.diagnosis import PerRank, Predicate, RankVerb, Report
from nbddp.controller.prompts import HELP, Answer, DebuggerTurns, Turn
from nbddp.wire.flight_recorder import Site
from nbddp.wire.messages import InputRequest
from nbddp.wire.rank_set import RankSet

WAITS = Predicate(RankVerb.WAITS, " in all_reduce #1")
RUNS = Predicate(RankVerb.RUNS)


class Cell:
    """A cell of some ranks, and a clock."""

    def __init__(self, *ranks: int) -> None:
        self.turns = DebuggerTurns(RankSet(ranks))
        self.now = 100.0
        self.number = 0
        self.late: list[tuple[int, str]] = []  #: what ranks got as soon as they asked

    def stop(self, *ranks: int, line: int = 3) -> None:
        """Ranks come to a prompt."""
        for rank in ranks:
            self.number += 1
            site = Site(cell=5, line=line, source=f"source {line}")
            request = InputRequest(
                run_id="r",
                rank=rank,
                question=self.number,
                prompt="",
                password=False,
                debugger=site,
            )
            answer = self.turns.add(request, self.number, self.now)
            self.late += [(rank, answer)] if answer else []

    def turn(self) -> Turn:
        turn = self.turns.due(self.now)
        assert turn is not None
        return turn

    def asked(self) -> int:
        return self.turn().request.rank

    def is_quiet(self) -> bool:
        return self.turns.due(self.now) is None

    def type(self, line: str) -> Answer:
        return self.turns.answer(line, self.now)

    def sent(self, line: str) -> list[tuple[int, str]]:
        return [(request.rank, text) for request, text in self.type(line).replies]

    def note(self, predicates: dict[int, Predicate]) -> None:
        places = {rank: PerRank(rank, "running", what) for rank, what in predicates.items()}
        self.turns.note(Report("r", ranks=places), self.now)


def stopped(*ranks: int) -> Cell:
    cell = Cell(*ranks)
    cell.stop(*ranks)
    cell.turn()
    return cell


def test_the_first_prompt_waits_for_ranks_that_come_together():
    cell = Cell(0, 1, 2)
    cell.stop(2)
    assert cell.is_quiet()
    cell.stop(1)
    cell.now = cell.turns.due_at() or 0.0
    assert cell.turn().tells == (
        "ranks 1-2 are at a prompt; this is rank 1. Also: `rank 2`, `ranks`, `all c`; see `help`",
    )


def test_the_first_prompt_comes_at_once_when_all_ranks_are_there():
    cell = Cell(0, 1, 2)
    cell.turns.leave(1)
    cell.stop(2, 0)
    assert cell.asked() == 0


def test_the_first_prompt_waits_for_no_rank_that_waits_itself():
    cell = Cell(0, 1, 2)
    cell.stop(1)
    cell.note({0: WAITS, 2: RUNS})
    cell.now += 0.5
    assert cell.is_quiet()
    cell.note({0: WAITS, 1: WAITS, 2: WAITS})
    cell.now += 0.4
    assert cell.asked() == 1


def test_a_single_prompt_says_nothing_else():
    cell = stopped(2)
    assert cell.sent("n") == [(2, "n")]
    cell.stop(2)
    assert cell.turn().tells == ()


def test_the_prompt_stays_on_its_rank_and_waits_for_its_answer():
    cell = stopped(0, 1, 2)
    for line in ("p x", "", "n"):
        assert cell.sent(line) == [(0, line)]
        assert cell.is_quiet()
        cell.stop(0)
        assert (cell.asked(), cell.turn().tells) == (0, ())


def test_rank_2_switches_and_names_the_line():
    cell = stopped(0, 1, 2)
    answer = cell.type("rank 2")
    assert answer == Answer(tells=("the prompt is on rank 2, at cell [5], line 3: `source 3`",))
    assert cell.asked() == 2
    assert cell.sent("p x") == [(2, "p x")]
    cell.stop(2)
    assert cell.asked() == 2


def test_a_rank_that_is_at_no_prompt_cannot_be_chosen():
    cell = Cell(0, 1, 2)
    cell.turns.leave(2)
    cell.stop(0, 1)
    cell.turn()
    for rank in (2, 9):
        said = f"rank {rank} is at no prompt; ranks 0-1 are"
        assert cell.type(f"rank {rank}") == Answer(tells=(said,))
        assert cell.asked() == 0


def test_a_rank_that_goes_on_makes_room_for_the_next():
    cell = stopped(0, 1, 2)
    cell.type("rank 1")
    for line, said in (("c", "rank 1 goes on"), ("q", "rank 2 left the debugger")):
        cell.turn()
        cell.type(line)
        turn = cell.turn()
        place = "at cell [5], line 3: `source 3`"
        assert turn.tells == (f"{said}; the prompt is on rank {turn.request.rank}, {place}",)
    assert cell.asked() == 0
    cell.type("c")
    assert cell.is_quiet()
    assert cell.turns.due_at() is None


def test_a_rank_whose_program_ends_makes_room_for_the_next():
    cell = stopped(0, 1)
    cell.type("n")
    assert cell.is_quiet()
    cell.turns.leave(0)
    (said,) = cell.turn().tells
    assert said.startswith("rank 0 has ended the cell; the prompt is on rank 1")


def test_a_rank_that_waits_for_others_makes_room_for_them():
    cell = stopped(0, 1)
    cell.type("n")
    cell.note({0: RUNS, 1: WAITS})
    cell.now += 1
    assert cell.is_quiet()
    cell.note({0: WAITS})
    assert cell.is_quiet()  # it may have been freed meanwhile
    cell.now += 0.5
    (said,) = cell.turn().tells
    assert said.startswith("rank 0 waits in all_reduce #1; the prompt is on rank 1")
    cell.type("n")
    cell.stop(0, 1, line=4)
    assert cell.asked() == 1


def test_a_rank_that_runs_for_long_makes_room_for_others():
    cell = stopped(0, 1)
    cell.type("p slow()")
    cell.now = cell.turns.due_at() or 0.0
    (said,) = cell.turn().tells
    assert said.startswith("rank 0 still runs; the prompt is on rank 1")


def test_a_question_of_the_program_is_no_delay():
    cell = stopped(0, 1)
    cell.type("p input()")
    cell.now += 60
    cell.turns.be_patient(cell.now)
    assert cell.is_quiet()
    cell.stop(0)
    assert cell.asked() == 0


def test_a_command_for_all_waits_for_all_of_them():
    cell = stopped(0, 1, 2)
    cell.type("rank 1")
    cell.turn()
    assert cell.sent("all p x") == [(0, "p x"), (1, "p x"), (2, "p x")]
    assert cell.turns.gathered == RankSet.all(3)
    cell.stop(2, 1)
    assert cell.turns.gathered == RankSet.all(3)
    assert cell.is_quiet()
    cell.turns.leave(0)
    assert cell.turns.gathered == RankSet()
    assert cell.asked() == 1


def test_a_command_for_all_waits_no_longer_than_for_one():
    cell = stopped(0, 1, 2)
    cell.type("all n")
    cell.stop(1)
    cell.note({0: WAITS, 2: WAITS})
    cell.now += 0.5
    assert cell.asked() == 1
    assert cell.turns.gathered == RankSet()


def test_an_empty_line_repeats_a_command_for_all():
    cell = stopped(0, 1)
    for line in ("all n", "", " "):
        assert cell.sent(line) == [(0, "n"), (1, "n")]
        cell.stop(0, 1)
        cell.turn()
    cell.type("rank 1")
    cell.turn()
    assert cell.sent("") == [(1, "")]


def test_all_c_is_also_for_a_rank_that_comes_back_later():
    """Rank 0 waits in a collective, which ends when the others have stepped over it, too."""
    cell = stopped(0, 1, 2)
    assert cell.sent("n") == [(0, "n")]
    cell.note({0: WAITS})
    cell.now += 0.4
    assert cell.asked() == 1
    assert cell.sent("all n") == [(1, "n"), (2, "n")]
    cell.stop(1, 2)
    assert cell.asked() == 1
    assert cell.sent("all c") == [(1, "c"), (2, "c")]
    cell.stop(0)
    assert cell.late == [(0, "c")]
    assert cell.is_quiet()
    cell.stop(0)  # at the next breakpoint
    assert cell.late == [(0, "c")]
    cell.now += 1.0
    assert cell.asked() == 0


def test_c_of_one_rank_is_not_for_a_rank_that_comes_back_later():
    cell = stopped(0, 1)
    cell.sent("n")
    cell.note({0: WAITS})
    cell.now += 0.4
    assert cell.asked() == 1
    assert cell.sent("c") == [(1, "c")]
    cell.stop(0)
    cell.now += 1.0
    assert (cell.asked(), cell.late) == (0, [])


def test_ranks_that_all_go_on_meet_again_before_the_next_prompt():
    cell = stopped(0, 1, 2)
    cell.type("all c")
    assert cell.turns.gathered == RankSet()  # what they print now is shown as it comes
    cell.stop(0)
    assert cell.is_quiet()
    cell.stop(1)
    assert cell.is_quiet()
    cell.stop(2)
    assert cell.turn().tells == ()
    cell.type("all c")
    cell.stop(1)
    cell.now = cell.turns.due_at() or 0.0
    assert cell.asked() == 1


def test_an_interrupt_ends_open_prompts():
    cell = stopped(0, 1)
    cell.turns.drop(cell.number)
    assert cell.turns.due_at() is None
    cell.stop(0)
    assert cell.is_quiet()  # the other one asks again too
    cell.stop(1)
    cell.turns.drop(cell.number - 2)  # the same interrupt
    assert cell.asked() == 0


def test_the_list_of_ranks():
    cell = Cell(0, 1, 2, 3)
    cell.stop(0, 2)
    cell.stop(1, line=4)
    cell.now += 1
    cell.turn()
    assert cell.type("ranks") == Answer(wants_list=True)
    others = {
        3: PerRank(3, "finished", Predicate(RankVerb.HAS_FINISHED)),
        4: PerRank(4, "running", Predicate(RankVerb.WAITS, " in barrier #1")),
        5: PerRank(5, "running", Predicate(RankVerb.WAITS, " in barrier #1")),
    }
    assert cell.turns.listing(others).splitlines() == [
        "ranks 0,2  are at a prompt, at cell [5], line 3: `source 3`",
        "rank 1     is at a prompt, at cell [5], line 4: `source 4`",
        "rank 3     has finished the cell",
        "ranks 4-5  wait in barrier #1",
        "the prompt is on rank 0",
    ]


def test_help_is_that_of_the_debugger_and_more():
    cell = stopped(0, 1)
    assert cell.type("help rank") == Answer(tells=(HELP,))
    cell.turn()
    assert cell.type("help").tells == ()
    cell.stop(0)
    assert cell.turn().tells == (HELP,)


def test_all_debuggers_end_when_no_user_can_be_asked():
    cell = stopped(0, 1)
    assert [request.rank for request in cell.turns.close()] == [0, 1]
    cell.stop(1)
    cell.now += 1
    assert cell.turn().tells == ()


def test_the_prompt_stays_on_a_thread_too():
    cell = stopped(0, 0, 1)
    (reply,) = cell.type("p x").replies
    assert cell.is_quiet()
    cell.stop(0)
    again = cell.turn().request
    assert again.question > reply[0].question
    assert cell.sent("c") == [(0, "c")]
    assert cell.turn().request.question < reply[0].question  # the other thread
    assert cell.sent("c") == [(0, "c")]
    assert cell.asked() == 1


def test_a_debugger_that_the_user_has_opened_is_asked_at_once():
    cell = Cell(0, 1, 2)
    cell.turns.expect(2)
    cell.stop(2)
    assert cell.asked() == 2
    assert cell.sent("c") == [(2, "c")]
    cell.stop(1)
    assert cell.is_quiet()  # others may come with it


def test_the_debugger_that_was_opened_from_the_prompt_of_all_ranks_is_alone():
    cell = Cell(0, 1)
    cell.turns.expect(1)
    cell.stop(1)
    assert cell.asked() == 1
    assert cell.type("rank 0").tells == (
        "this debugger looks at rank 1 alone. Next: q comes back to the prompt of all ranks; "
        "there: rank 0",
    )
    (text,) = cell.type("help ranks").tells
    assert "all COMMAND" not in text
    assert "rank 1 alone" in text
    cell.type("help")
    cell.stop(1)
    assert cell.turn().tells == (text,)
    cell.type("q")
    cell.turns.expect(0)
    cell.stop(0)
    assert cell.turn().tells == ()
    cell.type("q")
    cell.stop(0)
    cell.now += 2
    cell.turn()
    assert cell.type("rank 1").tells == ("rank 1 is at no prompt; rank 0 is",)


def test_a_debugger_is_not_alone_beside_a_breakpoint():
    cell = Cell(0, 1)
    cell.turns.expect(1)
    cell.stop(1)
    cell.stop(0)
    assert cell.asked() == 0
    assert cell.type("help ranks").tells == (HELP,)
