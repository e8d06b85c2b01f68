"""What a reader sees when a cell fails, by its words."""

import re
import signal
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from nbddp.controller.cell_errors.build import cell_error, restarted_text
from nbddp.controller.cell_errors.traceback_groups import MAX_FULL
from nbddp.controller.diagnosis.phrases import Predicate, RankVerb
from nbddp.controller.diagnosis.report import Finding, Kind, PerRank, Report
from nbddp.controller.state.exit_text import describe_exit, exit_phrase, idle_exit_text
from nbddp.controller.state.outcome import RankResult, RunOutcome
from nbddp.errors import (
    CellError,
    CellInterruptedError,
    CellTimeoutError,
    DeadlockError,
    MismatchError,
    RankExitedError,
)
from nbddp.wire.flight_recorder.schema import (
    ExceptionLine,
    Mismatch,
    Operation,
    Signature,
    Site,
)
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import RankExited
from nbddp.wire.rank_set import RankSet

LOGS = {rank: f"/logs/rank{rank}.log" for rank in range(16)}


def plain(coloured: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", coloured)


def ok(rank: int) -> RankResult:
    return RankResult(rank, "ok", elapsed_s=1.0)


def unfinished(rank: int) -> RankResult:
    return RankResult(rank, "unfinished", elapsed_s=1.0)


def raised(rank: int, ename: str = "ValueError", evalue: str = "bad", at_ns: int = 0) -> RankResult:
    info = ErrorInfo(ename=ename, evalue=evalue, traceback=[f"<traceback of {ename}: {evalue}>"])
    return RankResult(rank, "error", elapsed_s=1.0, error=info, failed_at_ns=at_ns)


def died(
    rank: int,
    exit_code: int = -9,
    printed: str = "",
    *,
    out_of_memory: bool = False,
    elapsed_s: float = 3.2,
    fault: str = "",
) -> RankResult:
    exited = RankExited(
        rank=rank,
        pid=41530 + rank,
        exit_code=exit_code,
        out_of_memory=out_of_memory,
        last_output=printed,
        fault=fault,
    )
    return RankResult(rank, "exited", elapsed_s=elapsed_s, exited=exited)


def error(*results: RankResult, is_plain: bool = True, **more: Any) -> CellError:
    """The error of a cell; in a pool that cannot recover, unless the test says so."""
    outcome = RunOutcome(
        run_id="r",
        results={result.rank: result for result in results},
        elapsed_s=4.0,
        is_plain=is_plain,
        **more,
    )
    found = cell_error(outcome, "cell [7]", LOGS)
    assert found is not None
    return found


def text(found: CellError) -> str:
    assert "\x1b" not in str(found)  # colours are for `_render_traceback_` only
    return str(found)


# --- exceptions ----------------------------------------------------------------------------------


def test_no_error_without_a_failure():
    outcome = RunOutcome(run_id="r", results={0: ok(0), 1: ok(1)}, elapsed_s=1.0)
    assert cell_error(outcome, "cell [7]", LOGS) is None
    interrupted = RunOutcome(run_id="r", results={0: ok(0)}, elapsed_s=1.0, interrupted=True)
    assert cell_error(interrupted, "cell [7]", LOGS) is None


def test_one_traceback_for_ranks_that_raised_the_same():
    found = error(raised(0), raised(1), raised(2), raised(3))
    assert type(found) is CellError
    assert text(found) == (
        "ranks 0-3\n<traceback of ValueError: bad>\n\nCellError: ranks 0-3 raised ValueError: bad"
    )
    assert found.by_rank == dict.fromkeys(range(4), ("ValueError", "bad"))


def test_ranks_that_finished_are_named():
    assert text(error(ok(0), raised(1), ok(2))) == (
        "rank 1\n<traceback of ValueError: bad>\n\n"
        "ranks 0,2 finished\n"
        "CellError: rank 1 raised ValueError: bad"
    )


def test_the_first_failure_comes_first():
    found = error(
        raised(0, "RuntimeError", "the others are gone", at_ns=30),
        raised(1, "KeyError", "'x'", at_ns=20),
        raised(2, "RuntimeError", "the others are gone", at_ns=40),
    )
    assert text(found) == (
        "rank 1\n<traceback of KeyError: 'x'>\n\n"
        "ranks 0,2\n<traceback of RuntimeError: the others are gone>\n\n"
        "CellError: rank 1 raised KeyError: 'x'"
    )


def test_failures_of_the_same_moment_come_by_rank():
    found = text(error(raised(1, evalue="b", at_ns=5), raised(0, evalue="a", at_ns=5)))
    assert found.index("rank 0") < found.index("rank 1")


def test_the_same_error_in_another_place_is_another_group():
    def at_line(rank: int, line: int) -> RankResult:
        info = ErrorInfo(ename="ValueError", evalue="bad", traceback=[f"line {line}"])
        return RankResult(rank, "error", error=info, failed_at_ns=rank)

    assert text(error(at_line(0, 3), at_line(1, 9))) == (
        "rank 0\nline 3\n\nrank 1\nline 9\n\nCellError: ranks 0-1 raised ValueError: bad"
    )


def test_errors_of_one_line_are_told_together_though_each_has_its_text():
    def bad(rank: int, line: int = 2, ename: str = "ValueError", at_ns: int = 0) -> RankResult:
        text = f"bad rank {rank}"
        traceback = [f"Cell In[7], line {line}\n----> {line} check(rank)", f"{ename}: {text}"]
        info = ErrorInfo(ename=ename, evalue=text, traceback=traceback, site=site(line))
        return RankResult(rank, "error", error=info, failed_at_ns=at_ns or 9 - rank)

    found = error(*map(bad, range(4)))
    assert text(found).endswith("CellError: ranks 0-3 raised ValueError")
    assert text(found).count("ValueError: bad rank") == 4
    # Another line or another error is another reason; equal ones keep their text.
    others = [bad(1, 5), bad(2, ename="KeyError"), replace(bad(0, at_ns=4), rank=3)]
    assert text(error(bad(0, at_ns=1), *others)).endswith("raised ValueError: bad rank 0")
    # Who only failed with it is told apart.
    found = error(bad(0), replace(bad(1), was_freed=True), bad(2), is_plain=False)
    assert text(found).endswith("CellError: ranks 0,2 raised ValueError")


def at_line(rank: int, line: int, evalue: str = "bad") -> RankResult:
    traceback = [f"Cell In[7], line {line}\n----> {line} check(rank)", f"ValueError: {evalue}"]
    info = ErrorInfo(ename="ValueError", evalue=evalue, traceback=traceback, site=site(line))
    return RankResult(rank, "error", error=info, failed_at_ns=rank)


def test_at_most_four_tracebacks_in_full():
    found = text(error(*(at_line(rank, rank + 1, f"of {rank}") for rank in range(7))))
    assert found.count("----> ") == MAX_FULL == 4
    assert found.endswith(
        "rank 4: ValueError: of 4\n"
        "rank 5: ValueError: of 5\n"
        "rank 6: ValueError: of 6\n"
        "CellError: rank 0 raised ValueError: of 0"
    )


def test_of_one_place_there_is_one_traceback_and_a_line_for_each_message():
    results = [
        replace(at_line(rank, 2, f"bad {rank // 2}"), failed_at_ns=-rank) for rank in (2, 5, 4, 7)
    ]
    assert text(error(*results)) == (
        "rank 2\nCell In[7], line 2\n----> 2 check(rank)\nValueError: bad 1\n\n"
        "ranks 4-5,7 at the same place\n"
        "  ranks 4-5 ValueError: bad 2\n"
        "  rank 7    ValueError: bad 3\n\n"
        "CellError: ranks 2,4-5,7 raised ValueError"
    )
    two = text(error(at_line(0, 2, "bad 0"), at_line(3, 2, "bad 3")))
    assert "\nrank 3 at the same place: ValueError: bad 3\n\nCellError: " in two
    many = text(error(*(at_line(rank, 2, f"bad {rank}") for rank in range(64))))
    assert many.count("----> ") == 1
    assert "\n  rank 16   ValueError: bad 16\n  ranks 17-63 with other messages\n" in many
    # The message stands at the end; numbers of lines are none.
    assert text(error(at_line(0, 2, "2"), at_line(1, 3, "3"))).count("----> ") == 2


def test_addresses_make_no_other_error():
    """Equal objects may lie anywhere, and at the same place by chance."""
    results = [
        at_line(rank, 2, f"no pickle of <function f at 0x7f00{place}>")
        for rank, place in enumerate(("aa10", "aa10", "bb30", "aa10"))
    ]
    found = text(error(*results))
    assert found.startswith("ranks 0-3\nCell In[7], line 2")
    assert found.count("no pickle") == 2
    assert found.endswith("ranks 0-3 raised ValueError: no pickle of <function f at 0x7f00aa10>")


def test_a_message_of_many_lines_is_short_in_the_headline():
    found = text(error(raised(0, evalue="first line\nsecond line")))
    assert found.endswith("CellError: rank 0 raised ValueError: first line")
    assert text(error(raised(0, evalue=""))).endswith("CellError: rank 0 raised ValueError")


def test_a_cell_that_was_given_up():
    assert text(error(ok(0), unfinished(1), interrupted=True)) == (
        "rank 0 finished\n"
        "rank 1 is still inside the cell (in C code, or in code that goes on after an interrupt); "
        "if it does not come back: %ddp restart\n"
        "CellInterruptedError: cell [7] was interrupted"
    )


def test_a_cell_that_ended_with_its_ranks_inside():
    """Nobody interrupted it, no time ran out: the hub has ended."""
    found = error(ok(0), unfinished(1))
    assert type(found) is CellError
    assert text(found) == (
        "rank 0 finished\n"
        "rank 1 is still inside the cell (in C code, or in code that goes on after an interrupt); "
        "if it does not come back: %ddp restart\n"
        "CellError: cell [7] ended before rank 1 had finished"
    )


@pytest.mark.parametrize("command", ["%ddp stop", "%ddp restart"])
def test_a_cell_that_a_command_ended(command: str):
    found = error(ok(0), unfinished(1), ended_by=command, interrupted=True)
    assert type(found) is CellError
    assert text(found) == f"CellError: cell [7] was ended by {command} before rank 1 had finished"


# --- interrupts and time -------------------------------------------------------------------------


def test_an_interrupt():
    found = error(
        raised(0, "KeyboardInterrupt", ""), raised(1, "KeyboardInterrupt", ""), interrupted=True
    )
    assert type(found) is CellInterruptedError
    assert text(found) == (
        "ranks 0-1\n<traceback of KeyboardInterrupt: >\n\n"
        "CellInterruptedError: cell [7] was interrupted"
    )
    assert found.by_rank[0] == ("KeyboardInterrupt", "")


def test_a_timeout_goes_before_an_interrupt():
    found = error(ok(0), unfinished(1), unfinished(2), timed_out=True, interrupted=True)
    assert type(found) is CellTimeoutError
    assert text(found) == (
        "rank 0 finished\n"
        "ranks 1-2 are still inside the cell (in C code, or in code that goes on after an "
        "interrupt); if they do not come back: %ddp restart\n"
        "CellTimeoutError: cell [7] ran longer than its --timeout"
    )


# --- death ---------------------------------------------------------------------------------------


def test_the_death_of_a_rank():
    found = error(
        raised(0, "RuntimeError", "connection closed"),
        ok(1),
        died(2, printed="step 39\nstep 40 | loss 2.31\n"),
        unfinished(3),
    )
    assert type(found) is RankExitedError
    assert text(found) == (
        "RankExitedError: rank 2 exited while it ran cell [7]\n"
        "  rank 2    SIGKILL (signal 9), pid 41532, 3.2 s after the cell began\n"
        "  likely    the system ran out of memory, or someone ran `kill -9`\n"
        "  printed   step 39\n"
        "            step 40 | loss 2.31\n"
        "  log       /logs/rank2.log\n"
        "  others    rank 1 finished\n"
        "  others    rank 3 is still inside the cell (in C code, or in code that goes on after an "
        "interrupt); if it does not come back: %ddp restart\n"
        "rank 0\n<traceback of RuntimeError: connection closed>\n\n"
        "  next      %ddp restart   (ranks 0-1,3 would lose their variables too)"
    )
    assert found.by_rank[2] == ("RankExited", "SIGKILL (signal 9)")


def test_only_the_last_lines_are_shown():
    found = text(error(died(0, printed="".join(f"line {n}\n" for n in range(20)))))
    assert "line 13\n" not in found
    assert "printed   line 14\n" in found
    assert "            line 19\n" in found


def test_the_death_of_all_ranks():
    found = text(error(*(died(rank, exit_code=3) for rank in range(6))))
    assert found.startswith("RankExitedError: ranks 0-5 exited while they ran cell [7]\n")
    assert found.count("exit code 3, pid") == MAX_FULL
    assert "  and ranks 4-5\n" in found
    assert found.endswith("  next      %ddp restart")


def test_a_death_goes_before_a_timeout_and_an_interrupt():
    found = error(died(0), unfinished(1), timed_out=True, interrupted=True)
    assert type(found) is RankExitedError


@pytest.mark.parametrize(
    ("exit_code", "reason", "text"),
    [
        (3, "", "exited with code 3"),
        (-9, "", "exited with SIGKILL (signal 9)"),
        (-9, "ended by %ddp restart", "exited, ended by %ddp restart"),
        (255, "its exit status is not known", "exited, its exit status is not known"),
    ],
)
def test_how_a_rank_exited_as_part_of_a_sentence(exit_code: int, reason: str, text: str):
    exited = died(0, exit_code).exited
    assert exited is not None
    assert exit_phrase(msgspec.structs.replace(exited, reason=reason)) == text


@pytest.mark.parametrize(
    ("exit_code", "how", "likely"),
    [
        (0, "exit code 0", "the cell, or a library, called os._exit() or C's exit()"),
        (3, "exit code 3", "the cell, or a library, called os._exit() or C's exit()"),
        (-9, "SIGKILL (signal 9)", "ran out of memory, or someone ran `kill -9`"),
        (-11, "SIGSEGV (signal 11)", "native code touched memory that is not its own"),
        (-7, "SIGBUS (signal 7)", "is /dev/shm full?"),
        (-6, "SIGABRT (signal 6)", "native code gave up"),
        (-8, "SIGFPE (signal 8)", "native code divided an integer by zero"),
        (-4, "SIGILL (signal 4)", "native code is not made for this processor"),
        (-15, "SIGTERM (signal 15)", "someone asked the process to end"),
        (-10, "SIGUSR1 (signal 10)", ""),
        (-99, "signal 99 (signal 99)", ""),
    ],
)
def test_exits_by_name(exit_code: int, how: str, likely: str):
    exited = died(0, exit_code).exited
    assert exited is not None
    found = describe_exit(exited)
    assert found[0] == how
    assert likely in found[1]
    assert bool(found[1]) == bool(likely)


@pytest.mark.parametrize("signum", sorted(signal.valid_signals()))
def test_every_signal_has_words(signum: int):
    exited = died(0, -signum).exited
    assert exited is not None
    assert f"(signal {int(signum)})" in describe_exit(exited)[0]


def test_out_of_memory_is_said_when_it_is_known():
    found = text(error(died(0, out_of_memory=True)))
    assert "the system ran out of memory and the kernel ended this process" in found
    assert "kill -9" not in found


FAULT = """Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "<ipython-input-7-af3e>", line 3 in crash
  File "<ipython-input-7-af3e>", line 5 in <module>
  File "/venv/IPython/core/interactiveshell.py", line 3553 in run_code
  File "/work/nbddp/rank/cells/executor.py", line 130 in _run
"""


def test_the_stack_of_a_crash_ends_where_the_cell_began():
    found = text(error(died(0, -11, fault=FAULT)))
    assert (
        "  at        /usr/lib/python3.11/ctypes/__init__.py, line 519, in string_at\n"
        "  called by cell [7], line 3, in crash\n"
        "  called by cell [7], line 5, in <module>\n"
    ) in found
    assert "IPython" not in found
    assert "executor.py" not in found


def test_a_second_init_says_what_to_do():
    found = text(error(raised(0, evalue="trying to initialize the default process group twice!")))
    assert found.endswith(
        "  likely    the pool has initialised the process group already\n"
        "  next      leave the call out, or: %ddp stop, then %ddp start --init none"
    )


# --- as shown ------------------------------------------------------------------------------------


def test_the_notebook_shows_the_message_and_none_of_our_frames():
    found = error(raised(0))
    [shown] = found._render_traceback_()
    assert "\x1b[31mCellError\x1b[0m: rank 0 raised ValueError" in shown
    assert plain(shown) == str(found)


def test_ranks_of_a_status():
    outcome = RunOutcome("r", {0: ok(0), 1: raised(1), 2: died(2)}, 1.0)
    assert outcome.ranks("error", "exited") == RankSet.of([1, 2])


def test_what_ended_a_rank_is_told_with_its_words_and_without_a_guess():
    how = "the agent of node 0 ended (exit code 1)"
    results = [
        RankResult(
            rank,
            "exited",
            elapsed_s=1.0,
            exited=RankExited(
                rank=rank,
                pid=41530 + rank,
                exit_code=-9,
                out_of_memory=False,
                last_output="OSError: No space left on device\n",
                reason=how,
            ),
        )
        for rank in (0, 1)
    ]
    text = str(error(*results))
    assert text.count(how) == 2
    assert text.count("No space left on device") == 1
    assert "likely" not in text
    assert "SIGKILL" not in text


# --- freed ranks ---------------------------------------------------------------------------------

ALL_REDUCE = Signature(
    kind="collective", op="all_reduce", input_sizes=((4,),), input_dtypes=("float32",)
)


def site(line: int, source: str = "dist.all_reduce(x)", cell: int = 7) -> Site:
    return Site(line=line, function="<module>", source=source, cell=cell)


def freed(rank: int, line: int = 5, ename: str = "CollectiveAbortedError") -> RankResult:
    traceback = [f"Cell In[7], line {line}\n----> {line} dist.all_reduce(x)\n\n{ename}: freed"]
    info = ErrorInfo(ename=ename, evalue="freed", traceback=traceback, site=site(line))
    return RankResult(rank, "error", elapsed_s=1.0, error=info, failed_at_ns=99, was_freed=True)


WAITS = Predicate(RankVerb.WAITS, " in all_reduce #17")
FINISHED = Predicate(RankVerb.HAS_FINISHED, aside=("; its last operation was all_reduce #16", ""))


def report(kind: Kind = "missing-rank", *, is_error: bool = False, **more: Any) -> Report:
    where = {
        0: PerRank(0, "running", WAITS, site(5), 1.5),
        1: PerRank(1, "finished", FINISHED),
        2: PerRank(2, "running", WAITS, site(5), 1.5),
    }
    found = Finding(
        kind=kind,
        proven=True,
        culprits=RankSet.of([1]),
        waiting=RankSet.of([0, 2]),
        headline="Rank 1 never called all_reduce #17; ranks 0,2 wait for it.",
        reason="it has finished.",
        next_step="Call it on all ranks.",
        ranks=where,
        is_error=is_error,
    )
    return Report(
        run_id="r",
        findings=(found,),
        stuck=RankSet.of([0, 2]),
        involved=RankSet.all(3),
        ranks=where,
        **more,
    )


def test_a_deadlock():
    found = error(freed(0), ok(1), freed(2), report=report(), is_plain=False)
    assert type(found) is DeadlockError
    assert text(found) == (
        "ranks 0,2 waited in all_reduce #17 (cell [7], line 5) and were freed\n"
        "rank 1 finished\n"
        "DeadlockError: Rank 1 never called all_reduce #17; ranks 0,2 wait for it\n"
        "  rank 1    has finished the cell; its last operation was all_reduce #16\n"
        "  rank 0    waits in all_reduce #17, at cell [7], line 5: `dist.all_reduce(x)`\n"
        "  rank 2    waits in all_reduce #17, at cell [7], line 5: `dist.all_reduce(x)`\n"
        "  kept      every variable is kept; the process groups are ready again"
    )
    assert found.by_rank == dict.fromkeys((0, 2), ("CollectiveAbortedError", "freed"))


def rendered(found: CellError) -> str:
    """What a notebook shows."""
    [shown] = found._render_traceback_()
    return plain(shown)


def test_below_a_card_the_error_is_brief():
    found = error(freed(0), ok(1), freed(2), report=report(), is_plain=False)
    assert rendered(found) == (
        "DeadlockError: Rank 1 never called all_reduce #17; ranks 0,2 wait for it\n"
        "  kept      every variable is kept; the process groups are ready again"
    )


@pytest.mark.parametrize(
    "other",
    [
        raised(2, "ValueError", "in finally", at_ns=200),
        RankResult(2, "unfinished", elapsed_s=4.0, stuck="a lock of libfoo"),
    ],
    ids=["raised something else", "does not come out"],
)
def test_an_error_that_says_more_than_the_card_is_shown_in_full(other: RankResult):
    found = error(freed(0), ok(1), other, report=report(), is_plain=False)
    assert rendered(found) == text(found)


def test_a_deadlock_after_which_the_groups_are_not_ready():
    found = error(
        freed(0), ok(1), freed(2), report=report(), rebuild_failure="rank 0: no", is_plain=False
    )
    assert type(found) is DeadlockError
    assert text(found).endswith(
        "  pool      the process groups could not be formed again: rank 0: no\n"
        "  next      %ddp restart   (variables can still be pulled)"
    )
    assert "ready again" not in text(found)


def test_a_deadlock_out_of_which_a_rank_does_not_come():
    stuck = RankResult(2, "unfinished", elapsed_s=4.0, stuck="a lock of libfoo")
    found = error(freed(0), ok(1), stuck, report=report(), is_plain=False)
    assert type(found) is DeadlockError
    assert (
        "rank 2 is still inside the cell (a lock of libfoo); "
        "if it does not come back: %ddp restart -r 2 (the others keep their variables)\n"
    ) in text(found)
    assert "ready again" not in text(found)


def test_errors_that_came_after_a_deadlock_are_told_too():
    """The code of the user has raised something else when it was freed."""
    found = error(
        freed(0), ok(1), raised(2, "ValueError", "in finally", at_ns=200), report=report()
    )
    assert type(found) is DeadlockError
    assert text(found).startswith("rank 2\n<traceback of ValueError: in finally>\n\nrank 0 waited")


def test_a_time_out_of_the_users_own_is_the_lesson():
    """The verdict was shown, and the time-out of the operation ended it."""
    found = error(raised(0, "RuntimeError", "Timed out", at_ns=1), ok(1), ok(2), report=report())
    assert type(found) is CellError
    assert text(found).endswith(
        "CellError: rank 0 raised RuntimeError: Timed out\n"
        "  proven    Rank 1 never called all_reduce #17; ranks 0,2 wait for it"
    )


def test_the_first_error_is_the_cells_and_the_others_were_freed():
    found = error(
        freed(0), raised(1, at_ns=1), freed(2), report=report("first-error"), is_plain=False
    )
    assert type(found) is CellError
    assert text(found) == (
        "rank 1\n<traceback of ValueError: bad>\n\n"
        "ranks 0,2 waited in all_reduce #17 (cell [7], line 5) and were freed\n"
        "CellError: rank 1 raised ValueError: bad"
    )


def test_who_left_the_debugger_made_no_error():
    left = raised(1, "BdbQuit", "", at_ns=1)
    found = error(freed(0), left, freed(2), report=report("left-debugger"), is_plain=False)
    assert type(found) is CellInterruptedError
    kept = "  kept      every variable is kept; the process groups are ready again"
    assert text(found) == (
        "ranks 0,2 waited in all_reduce #17 (cell [7], line 5) and were freed\n"
        f"CellInterruptedError: rank 1 left the debugger\n{kept}"
    )
    # The line above it has told the rest.
    [shown] = found._render_traceback_()
    assert shown.splitlines()[0].endswith(": rank 1 left the debugger")
    assert shown.splitlines()[1:] == [kept]


def test_all_ranks_left_the_debugger():
    found = error(raised(0, "BdbQuit", "", at_ns=1), raised(1, "BdbQuit", "", at_ns=2))
    assert type(found) is CellInterruptedError
    assert text(found) == "CellInterruptedError: ranks 0-1 left the debugger"


def test_an_error_tells_more_than_a_debugger_that_was_left():
    found = error(raised(0, "BdbQuit", "", at_ns=1), raised(1, at_ns=2))
    assert type(found) is CellError
    assert text(found) == (
        "rank 1\n<traceback of ValueError: bad>\n\n"
        "rank 0 left the debugger\n"
        "CellError: rank 1 raised ValueError: bad"
    )


def test_where_freed_ranks_waited_comes_from_their_tracebacks_without_a_report():
    found = text(error(freed(0, 5), raised(1, at_ns=1), freed(2, 8)))
    assert "rank 0 waited (cell [7], line 5) and was freed\n" in found
    assert "rank 2 waited (cell [7], line 8) and was freed\n" in found


def test_what_a_freed_rank_raised_in_turn_is_told():
    """In an ``except`` of the user's."""
    verdict = report("first-error")
    results = freed(0, 8, "NameError"), raised(1, at_ns=1), freed(2, 8, "NameError")
    found = text(error(*results, report=verdict))
    assert (
        "ranks 0,2 waited in all_reduce #17 (cell [7], line 5) and were freed, "
        "and raised NameError: freed (cell [7], line 8) in turn\n"
    ) in found
    assert "in turn" not in text(error(freed(0, 8), results[1], results[1], report=verdict))


def test_freed_ranks_of_which_nothing_is_known():
    info = ErrorInfo(ename="E", evalue="", traceback=[])
    result = RankResult(0, "error", error=info, was_freed=True)
    found = error(result, ok(1), interrupted=True)
    assert text(found) == (
        "rank 0 was freed\nrank 1 finished\nCellInterruptedError: cell [7] was interrupted"
    )


def test_a_verdict_on_a_mismatch():
    found = error(freed(0), ok(1), freed(2), report=report("mismatched-collective"), is_plain=False)
    assert type(found) is MismatchError


def mismatch() -> Mismatch:
    def operation(signature: Signature, line: int, source: str) -> Operation:
        return Operation(
            record_id=1,
            pg_id="0@x",
            signature=signature,
            state="scheduled",
            collective_seq_id=17,
            site=site(line, source),
        )

    broadcast = Signature(kind="collective", op="broadcast", root=0)
    return Mismatch(
        rank=1,
        peer=0,
        mine=operation(broadcast, 9, "dist.broadcast(x, 0)"),
        theirs=operation(ALL_REDUCE, 5, "dist.all_reduce(x)"),
        fields=("op",),
    )


def test_a_mismatch_that_was_seen_before_data_moved():
    wrong = raised(1, "CollectiveMismatchError", "broadcast against all_reduce", at_ns=1)
    wrong = RankResult(1, "error", error=wrong.error, failed_at_ns=1, mismatches=(mismatch(),))
    found = error(freed(0), wrong, freed(2), report=report("first-error"), is_plain=False)
    assert type(found) is MismatchError
    assert text(found) == (
        "rank 1\n<traceback of CollectiveMismatchError: broadcast against all_reduce>\n\n"
        "ranks 0,2 waited in all_reduce #17 (cell [7], line 5) and were freed\n"
        "MismatchError: rank 0 called all_reduce, rank 1 called broadcast; "
        "it was seen before any data was lost\n"
        "  rank 0    called all_reduce at cell [7], line 5: `dist.all_reduce(x)`\n"
        "  rank 1    called broadcast at cell [7], line 9: `dist.broadcast(x, 0)`\n"
        "  kept      every variable is kept; the process groups are ready again"
    )


def test_a_mismatch_error_names_the_ranks_that_its_card_names():
    """A rank that saw it knows of one other, whichever came first."""
    wrong, usual = mismatch().mine, mismatch().theirs
    seen = {
        0: Mismatch(rank=0, peer=1, mine=usual, theirs=wrong, fields=("op",)),
        2: Mismatch(rank=2, peer=1, mine=usual, theirs=wrong, fields=("op",)),
    }
    results = [
        RankResult(
            rank,
            "error",
            error=raised(rank, "CollectiveMismatchError", f"of {rank}").error,
            failed_at_ns=9 - rank,
            mismatches=(each,),
        )
        for rank, each in seen.items()
    ]
    card = report("mismatched-collective")
    headline = "Rank 1 called broadcast, ranks 0,2 called all_reduce, as collective #17"
    told = replace(card.findings[0], headline=f"{headline}.", collective_seq_id=17)
    found = error(*results, freed(1), is_plain=False, report=replace(card, findings=(told,)))
    assert f"MismatchError: {headline}\n" in text(found)
    assert (
        "  ranks 0,2 called all_reduce at cell [7], line 5: `dist.all_reduce(x)`\n"
        "  rank 1    called broadcast at cell [7], line 9: `dist.broadcast(x, 0)`\n"
    ) in text(found)
    # Before there was a report, all that is known is told.
    found = error(*results, freed(1), is_plain=False)
    assert "MismatchError: rank 1 called broadcast, ranks 0,2 called all_reduce;" in text(found)


def test_one_traceback_is_enough_for_a_mismatch_that_several_ranks_saw():
    results = [
        RankResult(
            rank,
            "error",
            error=raised(rank, "CollectiveMismatchError", f"of {rank}").error,
            failed_at_ns=at_ns,
            mismatches=(mismatch(),),
        )
        for rank, at_ns in ((1, 5), (2, 3))
    ]
    found = error(freed(0), *results, is_plain=False)
    assert type(found) is MismatchError
    assert text(found).startswith(
        "rank 2\n<traceback of CollectiveMismatchError: of 2>\n\n"
        "rank 0 waited (cell [7], line 5) and was freed\n"
        "rank 1 raised CollectiveMismatchError too\n"
        "MismatchError: "
    )


def test_a_connection_that_broke_with_a_rank_gets_a_line():
    info = ErrorInfo(
        ename="CollectiveFailedError",
        evalue="Connection closed by peer",
        traceback=["Cell In[7], line 3\n----> 3 dist.all_reduce(x)"],
        site=site(3),
    )
    lost = RankResult(0, "error", error=info)
    found = text(error(lost, died(1), is_plain=False))
    assert "  others    rank 0 lost the connection (cell [7], line 3)\n" in found
    assert "Connection closed" not in found
    # Without a rank that exited, the error is all that is known.
    assert "Cell In[7], line 3" in text(error(lost, ok(1)))


def test_a_mismatch_that_was_only_warned_of_is_no_error():
    warned = RankResult(1, "ok", mismatches=(mismatch(),))
    outcome = RunOutcome("r", {0: ok(0), 1: warned}, 1.0)
    assert cell_error(outcome, "cell [7]", LOGS) is None
    found = error(warned, raised(0))
    assert type(found) is CellError


def test_a_cell_that_ended_well_and_wrong():
    wrong = report("silent-mismatch", is_error=True)
    found = error(ok(0), ok(1), ok(2), report=wrong, is_wrong=True)
    assert type(found) is MismatchError
    assert text(found) == (
        "MismatchError: Rank 1 never called all_reduce #17; ranks 0,2 wait for it\n"
        "  proven    it has finished.\n"
        "  next      Call it on all ranks."
    )
    assert len(rendered(found).splitlines()) == 1
    assert found.by_rank == {}


def test_ranks_that_an_interrupt_ended_get_a_line_each():
    found = error(
        freed(0, ename="KeyboardInterrupt"),
        raised(1, "KeyboardInterrupt", ""),
        interrupted=True,
        is_plain=False,
    )
    assert type(found) is CellInterruptedError
    assert text(found) == (
        "rank 1\n<traceback of KeyboardInterrupt: >\n\n"
        "rank 0 was interrupted (cell [7], line 5)\n"
        "CellInterruptedError: cell [7] was interrupted"
    )


def test_after_a_death_who_was_interrupted_did_not_wait_for_anybody():
    idle = [freed(rank, 3, "KeyboardInterrupt") for rank in (0, 1)]
    found = text(error(*idle, freed(2, 4), died(3), is_plain=False))
    assert "  others    ranks 0-1 were interrupted (cell [7], line 3)\n" in found
    assert "  others    rank 2 waited (cell [7], line 4) and was freed\n" in found


def test_a_mismatch_that_an_interrupt_brought_about_is_the_interrupts():
    info = ErrorInfo(
        ename="CollectiveMismatchError",
        evalue="broadcast against all_reduce",
        traceback=["<traceback>"],
        handling=ExceptionLine(name="KeyboardInterrupt", site=site(3)),
    )
    wrong = RankResult(1, "error", error=info, failed_at_ns=1, mismatches=(mismatch(),))
    found = error(freed(0, ename="KeyboardInterrupt"), wrong, interrupted=True, is_plain=False)
    assert type(found) is CellInterruptedError
    assert (
        "CellInterruptedError: cell [7] was interrupted; after that, rank 0 called all_reduce, "
        "rank 1 called broadcast" in text(found)
    )
    assert (
        "  before    rank 1 was interrupted (cell [7], line 3), and was here while handling it\n"
        in text(found)
    )


def test_an_error_before_the_interrupt_is_the_cells():
    found = error(
        raised(1, at_ns=1),
        raised(0, "KeyboardInterrupt", "", at_ns=2),
        interrupted=True,
        raised_before=RankSet.of([1]),
    )
    assert type(found) is CellError
    assert text(found).endswith("CellError: rank 1 raised ValueError: bad")


# --- replaced ranks ------------------------------------------------------------------------------


def test_a_rank_that_was_replaced():
    found = error(freed(0), ok(1), died(2), freed(3), fresh=RankSet.of([2]), is_plain=False)
    assert type(found) is RankExitedError
    assert "  others    rank 1 finished\n" in text(found)
    assert "  others    ranks 0,3 waited (cell [7], line 5) and were freed\n" in text(found)
    assert text(found).endswith(
        "  replaced  rank 2 was replaced by a fresh process: its variables are gone, "
        "those of ranks 0-1,3 are kept\n"
        "  next      nbddp.sync(model, optimizer, src=0) in a cell"
    )


def test_all_ranks_were_replaced():
    found = text(error(died(0), died(1), fresh=RankSet.all(2), is_plain=False))
    assert found.endswith(
        "  replaced  ranks 0-1 were replaced by fresh processes: their variables are gone\n"
        "  next      run the cells that define them again"
    )


def test_a_rank_that_could_not_be_replaced():
    found = text(error(ok(0), died(1), rebuild_failure="rank 1 was not ready", is_plain=False))
    assert found.endswith(
        "  pool      it could not be repaired: rank 1 was not ready\n"
        "  next      %ddp restart   (rank 0 would lose its variables too)"
    )


def test_a_rank_that_is_not_to_be_replaced():
    found = text(error(ok(0), died(1), ok(2), is_plain=False))
    assert found.endswith("  next      %ddp restart -r 1   (ranks 0,2 keep their variables)")


def test_what_a_restart_of_ranks_means():
    assert restarted_text(RankSet.of([2]), RankSet.of([0, 1, 3])) == (
        "rank 2 is a fresh process: its variables are gone, those of ranks 0-1,3 are kept. "
        "Next: nbddp.sync(model, optimizer, src=0) in a cell"
    )
    assert restarted_text(RankSet.of([0, 1]), RankSet.of([2])).startswith(
        "ranks 0-1 are fresh processes: their variables are gone, those of rank 2 are kept."
    )
    assert restarted_text(RankSet.all(2), RankSet()).endswith("their variables are gone")


@pytest.mark.parametrize(
    ("kept", "failure", "words"),
    [
        ([0], "", "was replaced by a fresh process: its variables are gone, those of rank 0"),
        ([], "", "was replaced by a fresh process: its variables are gone"),
        ([0], "no memory", "could not be replaced: no memory"),
    ],
)
def test_an_exit_between_cells(kept: list[int], failure: str, words: str):
    found = idle_exit_text(1, "SIGKILL (signal 9)", RankSet.of(kept), failure)
    assert found.startswith("rank 1 exited (SIGKILL (signal 9)) and ")
    assert words in found


# --- ranks that tell of others ------------------------------------------------------------------


def test_who_missed_a_monitored_barrier_is_told_by_the_rank_that_knows():
    secondary = (
        "the connection to another member of the group was lost\nRank 1 successfully reached "
        "monitoredBarrier, but received errors while waiting for send/recv from rank 0."
    )
    missed = "[Rank 0]: Rank 2 failed to pass monitoredBarrier in 2000 ms"
    found = text(
        error(
            raised(0, "RuntimeError", missed, at_ns=2),
            raised(1, "CollectiveFailedError", secondary, at_ns=1),
            ok(2),
            is_plain=False,
        )
    )
    assert "rank 1 came to monitored_barrier\n" in found
    assert "CollectiveFailedError" not in found
    assert found.endswith(f"CellError: rank 0 raised RuntimeError: {missed}")


def test_why_ranks_were_freed_is_told_without_a_report():
    found = text(error(freed(0, ename="CollectiveAbortedError"), is_plain=False))
    assert "CellError: cell [7] was ended by nbddp: " in found


def test_groups_with_a_dead_member_are_not_said_to_be_ready():
    told = report("missing-rank")
    found = text(error(freed(0), ok(1), report=told, dead=RankSet.of([2]), is_plain=False))
    assert "ready again" not in found
    assert "groups with rank 2, which exited, need %ddp restart -r 2" in found
