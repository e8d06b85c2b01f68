"""The card of ranks that exited in a cell."""

from dataclasses import replace

import msgspec

from nbddp.controller.catch_up import CellHistory, PastCell
from nbddp.controller.cell_errors import cell_error, exit_report, not_kept
from nbddp.controller.diagnosis import Finding
from nbddp.controller.state import LostNames, RankResult, RunOutcome
from nbddp.controller.state.exit_text import describe_exit
from nbddp.notebook.render import diagnosis_card
from nbddp.wire.flight_recorder import (
    EndedReduce,
    GroupMark,
    LoopVariable,
    Operation,
    SanitizerFinding,
    SanitizerReport,
    Site,
)
from nbddp.wire.message_types import AgentEnd, LostAgent
from nbddp.wire.rank_set import NO_RANKS, RankSet
from tests.support.cell_errors import (
    ALL_REDUCE,
    died,
    freed,
    ok,
    plain,
    raised,
    report,
    site,
    unfinished,
)

NAMES = [LostNames(2, ("model", "optimizer")), LostNames(3, ("loss",), ("best",))]


def outcome_of(*results: RankResult, fresh: RankSet = NO_RANKS) -> RunOutcome:
    return RunOutcome("r", {result.rank: result for result in results}, 4.0, fresh=fresh)


def finding_of(outcome: RunOutcome, names: list[LostNames] | None = None) -> Finding:
    report = exit_report(outcome, names or [])
    assert report.explains_exits
    return report.findings[0]


def with_last(result: RankResult, run_id: str = "r") -> RankResult:
    operation = Operation(
        record_id=3,
        pg_id="0",
        signature=ALL_REDUCE,
        state="completed",
        collective_seq_id=17,
        site=site(5),
        run_id=run_id,
        iteration=(LoopVariable("epoch", 1), LoopVariable("i", 4)),
    )
    assert result.exited is not None
    exited = msgspec.structs.replace(
        result.exited,
        last_operation=operation,
        memory_available=1_200_000_000,
        memory_total=24_000_000_000,
    )
    return msgspec.structs.replace(result, exited=exited)


def with_lost_agent(rank: int) -> RankResult:
    lost = died(rank)
    assert lost.exited is not None
    cause = LostAgent(1, AgentEnd("silent", 60, "n2"))
    return msgspec.structs.replace(lost, exited=msgspec.structs.replace(lost.exited, cause=cause))


def test_the_error_of_a_rank_whose_connection_to_a_lost_node_broke_stays():
    broke = raised(0, "CollectiveFailedError", "the connection was lost\ndetails")
    outcome = outcome_of(broke, freed(1), with_lost_agent(2))
    places = finding_of(outcome).ranks
    assert str(places[0]) == "rank 0 raised CollectiveFailedError: the connection was lost"
    assert str(places[1]).startswith("rank 1 waited and was freed")
    text = str(cell_error(outcome, "cell [7]", {}))
    assert "rank 0 raised CollectiveFailedError: the connection was lost" in text


def test_a_rank_that_was_killed():
    outcome = outcome_of(freed(0), with_last(died(1)), freed(2), ok(3), fresh=RankSet.of([1]))
    finding = finding_of(outcome, NAMES)
    assert finding.headline == "Rank 1 exited with SIGKILL (signal 9), 3.2 s after the cell began."
    assert (finding.culprits, finding.waiting) == (RankSet.of([1]), RankSet.of([0, 2]))
    assert [str(each) for each in finding.ranks.values()] == [
        "rank 0 waited and was freed, at cell [7], line 5: `dist.all_reduce(x)`",
        "rank 1 exited; its last operation was all_reduce #17 at epoch 1, i = 4, at cell [7], "
        "line 5: `dist.all_reduce(x)`",
        "rank 2 waited and was freed, at cell [7], line 5: `dist.all_reduce(x)`",
        "rank 3 has finished the cell",
    ]
    assert finding.suspicions == (
        "the system ran out of memory, or someone ran `kill -9`; "
        "1.2 of 24.0 GB of memory were free",
    )
    assert finding.reason == (
        "its process has ended. SIGKILL means: the system or another program ended it at once, so "
        "Python could not clean up."
    )
    killed = with_last(died(1))
    assert killed.exited is not None
    counted = msgspec.structs.replace(killed.exited, counts_memory_kills=True)
    assert finding_of(
        outcome_of(freed(0), msgspec.structs.replace(killed, exited=counted))
    ).suspicions == (
        "someone, or the cell, ran `kill -9`. Memory was not short: the kernel has killed no "
        "process for that, and 1.2 of 24.0 GB of memory were free",
    )
    assert finding.now == (
        "rank 1 was replaced by a fresh process: its variables are gone, those of ranks 0,2-3 are "
        "kept. It lacks model, optimizer of cell [2]; loss, perhaps best of cell [3]."
    )
    assert finding.next_step == (
        "Remove what ended rank 1. Then run `%ddp catchup` to give its new process the variables "
        "that it lacks, and run the cell again."
    )


def test_ranks_that_lost_the_connection_are_like_those_that_were_freed():
    lost = raised(0, "CollectiveFailedError", "connection closed")
    ranks = finding_of(outcome_of(lost, died(1), freed(2))).ranks
    assert [each.what for each in ranks.values()] == [
        "waited and was freed",
        "exited; it called no operation in this cell",
        "waited and was freed",
    ]


GLOO = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce "
    "fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 16 vs 12. Received "
    "data size doesn't match expected size.\n"
)


def test_a_rank_that_a_mismatch_has_ended_is_told_as_one():
    aborted = with_last(died(1, exit_code=-6, printed=GLOO))
    outcome = outcome_of(freed(0), aborted, freed(2), fresh=RankSet.of([1]))
    finding = finding_of(replace(outcome, report=report("mismatched-collective")))
    assert finding.suspicions == (
        "the calls of the ranks do not match: Gloo ends a process that receives more bytes than "
        "its call expects",
    )
    assert finding.next_step == (
        "Call it on all ranks. Then run `%ddp catchup` to give its new process the variables that "
        "it lacks, and run the cell again."
    )
    assert finding_of(outcome).next_step.startswith(
        "Make the same call, with equally many elements, on all ranks of the group. Then run"
    )


def test_tensors_that_a_mismatched_call_has_written_are_not_said_to_be_kept():
    aborted = with_last(died(1, exit_code=-6, printed=GLOO))
    judged = report("mismatched-collective")
    finding = replace(judged.findings[0], op="broadcast", written=RankSet.of([2]))
    judged = replace(judged, findings=(finding,))
    outcome = replace(outcome_of(freed(0), aborted, ok(2), fresh=RankSet.of([1])), report=judged)
    assert finding_of(outcome).now == (
        "rank 1 was replaced by a fresh process: its variables are gone, those of ranks 0,2 are "
        "kept. Except: the tensors that broadcast writes on rank 2 have new values, perhaps wrong "
        "ones."
    )
    explained = replace(outcome, report=exit_report(outcome))
    error = cell_error(explained, "cell [7]", {})
    assert error is not None
    shown = "".join(error._render_traceback_())
    for text in (str(error), shown):
        assert (
            " ".join(plain(text).split()).count(
                "except the tensors that the call writes on rank 2: it had ended there before the "
                "mismatch was found, and they have new values, perhaps wrong ones"
            )
            == 1
        )


def test_a_rank_that_ran_python_has_waited_for_nobody():
    finding = finding_of(outcome_of(freed(0), died(1), freed(2, 8, ename="KeyboardInterrupt")))
    assert finding.waiting == RankSet.of([0])
    assert str(finding.ranks[2]).startswith("rank 2 was interrupted, at cell [7], line 8")


def test_operations_of_earlier_cells_do_not_count():
    ranks = finding_of(outcome_of(with_last(died(0), run_id="earlier"), ok(1))).ranks
    assert ranks[0].what == "exited; it called no operation in this cell"


def test_several_ranks_exit_in_several_ways():
    outcome = outcome_of(
        died(0), died(1, exit_code=3), unfinished(2), raised(3, "ValueError", "no")
    )
    finding = finding_of(outcome)
    assert finding.headline == "Ranks 0-1 exited."
    assert [each.what for each in finding.ranks.values()] == [
        "exited with SIGKILL (signal 9), 3.2 s after the cell began; it called no operation in "
        "this cell",
        "exited with code 3, 3.2 s after the cell began; it called no operation in this cell",
        "is still inside the cell",
        "raised ValueError",
    ]
    assert finding.now == "their variables are gone."
    assert finding.next_step.startswith("`%ddp restart -r 0-1` (ranks 2-3 keep")


def test_a_crash_in_native_code():
    fault = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
        '  File "/usr/lib/python3/ctypes/__init__.py", line 519 in string_at\n'
        '  File "/tmp/ipykernel_1/7.py", line 4 in <module>\n'
    )
    finding = finding_of(outcome_of(died(0, exit_code=-11, fault=fault), ok(1)))
    assert finding.reason.startswith(
        "its process has ended in .../ctypes/__init__.py, line 519, in string_at, called by "
    )
    assert finding.suspicions == ("native code touched memory that is not its own",)


def test_the_error_below_the_card_is_brief():
    outcome = outcome_of(freed(0), died(1), fresh=RankSet.of([1]))
    whole = cell_error(outcome, "cell [7]", {1: "/logs/rank1.log"})
    explained = replace(outcome, report=exit_report(outcome))
    brief = cell_error(explained, "cell [7]", {1: "/logs/rank1.log"})
    assert whole is not None
    assert brief is not None
    assert str(brief) == str(whole)
    (displayed,) = brief._render_traceback_()
    assert displayed == (
        "\x1b[31mRankExitedError\x1b[0m: rank 1 exited with SIGKILL (signal 9) while it ran "
        "cell [7]\n"
        "  means     the system or another program ended it at once, so Python could not\n"
        "            clean up\n"
        "  likely    the system ran out of memory, or someone ran `kill -9`\n"
        "  log       %ddp log 1 shows its end\n"
        "  next      Remove what ended rank 1. Then run %ddp catchup to give its new process\n"
        "            the variables that it lacks, and run the cell again"
    )
    leaves = cell_error(replace(outcome, leaves_loops=True), "cell [7]", {})
    assert "to give its new process most of the variables that it lacks" in str(leaves)
    # A traceback of the user's code is not on the card.
    outcome = outcome_of(raised(0, "ValueError", "no"), died(1), fresh=RankSet.of([1]))
    explained = replace(outcome, report=exit_report(outcome))
    error = cell_error(explained, "cell [7]", {})
    assert error is not None
    (displayed,) = error._render_traceback_()
    assert "\n<traceback of ValueError: no>\n  next      Remove what ended" in displayed


def test_tensors_of_survivors_with_partial_results_are_named_on_the_card_and_in_the_error():
    torn = [msgspec.structs.replace(freed(rank), torn=("all_reduce #3",)) for rank in (0, 2)]
    outcome = outcome_of(torn[0], died(1), torn[1], fresh=RankSet.of([1]))
    large = (
        "the tensors of all_reduce #3 on ranks 0,2: no copy of them was kept, and they may hold "
        "partial results"
    )
    card = diagnosis_card.card(exit_report(outcome, NAMES), is_over=True)["text/plain"]
    assert (
        "those of ranks 0,2 are kept. Except: the tensors of all_reduce #3 on ranks 0,2 may hold "
        "partial results. It lacks model," in " ".join(card.split())
    )
    for each in (outcome, replace(outcome, report=exit_report(outcome))):
        error = cell_error(each, "cell [7]", {})
        assert error is not None
        for text in (str(error), *error._render_traceback_()):
            assert f"except {large} next Remove" in " ".join(text.split())
    # The ranks of a node that was lost have no fresh processes.
    outcome = outcome_of(torn[0], with_lost_agent(1), torn[1])
    assert finding_of(outcome).now == (
        "its variables are gone. The tensors of all_reduce #3 on ranks 0,2 may hold partial "
        "results."
    )
    error = cell_error(replace(outcome, report=exit_report(outcome)), "cell [7]", {})
    assert error is not None
    (displayed,) = error._render_traceback_()
    assert f"partial {large} next %ddp restart -r 1" in " ".join(displayed.split())


def test_ranks_on_which_a_reduce_had_ended_are_named_with_the_exit_of_its_root():
    def marked(result: RankResult, seq: int = 0) -> RankResult:
        reduces = (EndedReduce(root=1, collective_seq_id=seq),) if seq else ()
        mark = GroupMark(pg_id="0", collective_seq_id=18, digest=0, reduces=reduces)
        return msgspec.structs.replace(result, marks=(mark,))

    outcome = outcome_of(marked(freed(0), 17), died(1), marked(ok(2), 18), fresh=RankSet.of([1]))
    assert outcome.scratch == RankSet.of([0, 2])
    explained = replace(outcome, report=exit_report(outcome))
    card = diagnosis_card.card(exit_report(outcome), is_over=True)["text/plain"]
    assert "On ranks 0,2 reduce had ended: their tensors may hold partial sums" in " ".join(
        card.split()
    )
    for each in (outcome, explained):
        error = cell_error(each, "cell [7]", {})
        assert error is not None
        assert "except the tensors of reduce on ranks 0,2" in " ".join(str(error).split())
    assert not_kept(outcome, ()) == {"reduce": RankSet.of([0, 2])}
    assert not_kept(explained, ()) == {}  # the card tells it
    # One that has ended on its root, too, was no part of what the exit has cut off.
    cut = outcome_of(marked(freed(0), 17), with_last(died(1)), marked(ok(2), 18))
    assert cut.scratch == RankSet.of([2])  # `with_last`: its last call was #17
    ended = outcome_of(marked(freed(0), 17), marked(raised(1), 17), marked(ok(2), 18))
    assert ended.scratch == RankSet.of([2])
    assert not outcome_of(marked(ok(0), 17), marked(ok(1)), marked(ok(2))).scratch


def test_the_card_and_the_error_of_a_kill_on_purpose():
    fault = "rank 1 was killed, cell [7], line 4, step 0"
    one = RankSet.of([1])
    outcome = replace(outcome_of(ok(0), died(1), fresh=one), injected=(fault,), struck_dead=one)
    explained = replace(outcome, report=exit_report(outcome))
    step = "to give its new process the variables that it lacks, and run the cell again"
    assert finding_of(outcome).next_step == f"Run `%ddp catchup` {step}."
    error = cell_error(explained, "cell [7]", {1: "/logs/rank1.log"})
    assert error is not None
    assert error.headline.startswith("RankExitedError: rank 1 exited with SIGKILL")
    (displayed,) = error._render_traceback_()
    assert displayed == (
        "\x1b[31mRankExitedError\x1b[0m: rank 1 exited with SIGKILL (signal 9) while it ran "
        "cell [7]\n"
        "  log       %ddp log 1 shows its end\n"
        "  next      Run %ddp catchup to give its new process the variables that it lacks,\n"
        "            and run the cell again"
    )
    assert f"fault on purpose: {fault}" in str(error)  # in a script no line has told it
    for text in (str(error), finding_of(outcome).reason):
        assert "another program ended it" not in text


def test_the_brief_error_has_the_last_line_and_the_free_memory():
    outcome = outcome_of(freed(0), with_last(died(1)), fresh=RankSet.of([1]))
    explained = replace(outcome, report=exit_report(outcome))
    error = cell_error(explained, "cell [7]", {})
    assert error is not None
    (displayed,) = error._render_traceback_()
    assert "; 1.2 of 24.0 GB of memory were free" in " ".join(displayed.split())
    assert (
        "  last      all_reduce #17, done, at cell [7], line 5: dist.all_reduce(x)\n" in displayed
    )
    assert displayed.count("next") == 1


def test_the_brief_error_says_that_a_rank_was_at_an_operation_only_if_it_was_inside():
    dead = with_last(died(1))
    assert dead.exited is not None
    assert dead.exited.last_operation is not None
    last = msgspec.structs.replace(dead.exited.last_operation, state="scheduled")
    inside = msgspec.structs.replace(
        dead, exited=msgspec.structs.replace(dead.exited, last_operation=last)
    )
    outcome = outcome_of(freed(0), inside, fresh=RankSet.of([1]))
    error = cell_error(replace(outcome, report=exit_report(outcome)), "cell [7]", {})
    assert error is not None
    assert "was at    cell [7], line 5: dist.all_reduce(x)\n" in error._render_traceback_()[0]


def test_the_card():
    outcome = outcome_of(freed(0), with_last(died(1)), fresh=RankSet.of([1]))
    text = diagnosis_card.card(exit_report(outcome, NAMES), is_over=True)["text/plain"]
    assert text.startswith("Dead rank: rank 1 exited with SIGKILL (signal 9), 3.2 s after the cell")
    assert "  Now: rank 1 was replaced by a fresh process: its variables are gone" in text
    assert "Next:" not in text  # the error below the card ends with it


def test_names_that_a_fresh_rank_lacks():
    history = CellHistory()
    for number, code, ranks in (
        (1, "model = 1\nstep = 0", [0, 1]),
        (2, "mine = 2", [0]),
        (3, "step = 1", [0, 1]),
    ):
        history.begin(f"r{number}", PastCell(number, code, 1, RankSet.of(ranks)))
        history.end(RunOutcome(f"r{number}", {rank: RankResult(rank, "ok") for rank in ranks}, 0.1))
    model, step = LostNames(1, ("model",)), LostNames(3, ("step",))
    assert history.lost_names(RankSet.of([1]), 2) == [model, step]
    assert history.lost_names(RankSet.of([0]), 2) == [model, LostNames(2, ("mine",)), step]


def test_memory_of_an_open_operation_that_was_freed_is_the_likely_cause():
    open_one = with_last(died(0, -6)).exited
    assert open_one is not None
    assert open_one.last_operation is not None
    fault = SanitizerFinding("resize", open_one.last_operation, Site(cell=7, line=4))
    seen = msgspec.structs.replace(ok(1), sanitizer=SanitizerReport(findings=(fault,)))
    finding = finding_of(outcome_of(died(0, -6), seen))
    assert finding.suspicions == (
        "cell [7], line 4 gave other memory to a tensor that all_reduce #17 still used, as the "
        "warning says: native code went on with memory that was freed",
    )
    killed = finding_of(outcome_of(died(0, -9), seen))
    assert "all_reduce" not in killed.suspicions[0]
    # Memory is that of a process: this rank is known to have freed none.
    innocent = msgspec.structs.replace(died(0, -6), sanitizer=SanitizerReport())
    assert "all_reduce" not in finding_of(outcome_of(innocent, seen)).suspicions[0]


def test_memory_that_glibc_finds_corrupted():
    for printed in (
        "malloc(): unaligned tcache chunk detected\n",
        "corrupted size vs. prev_size\n",
    ):
        end = died(0, -6, printed=printed).exited
        assert end is not None
        assert describe_exit(end)[1].startswith("native code wrote to memory that is not its own")
