"""The error of a cell in which ranks exited: how, their last output, and what replaces them."""

import re
import signal

import msgspec
import pytest

from nbddp.controller.cell_errors import build, exit_report, restarted_text
from nbddp.controller.cell_errors.traceback_groups import MAX_FULL
from nbddp.controller.state.exit_text import describe_exit, exit_phrase, idle_exit_text
from nbddp.controller.state.outcome import RankResult, RunOutcome
from nbddp.errors import RankExitedError
from nbddp.wire.message_types import (
    AgentEnd,
    ErrorInfo,
    ExitCause,
    ForkServerEnd,
    KillRequest,
    LostAgent,
    UnknownStatus,
)
from nbddp.wire.messages import RankExited
from nbddp.wire.rank_set import RankSet
from tests.support.cell_errors import (
    cell_error,
    died,
    freed,
    ok,
    raised,
    report,
    site,
    text,
    unfinished,
)

# --- death ---------------------------------------------------------------------------------------


def test_the_death_of_a_rank():
    error = cell_error(
        raised(0, "RuntimeError", "connection closed"),
        ok(1),
        died(2, printed="step 39\nstep 40 | loss 2.31\n"),
        unfinished(3),
    )
    assert type(error) is RankExitedError
    assert text(error) == (
        "RankExitedError: rank 2 exited with SIGKILL (signal 9) while it ran cell [7]\n"
        "  rank 2    SIGKILL (signal 9), pid 41532, 3.2 s after the cell began\n"
        "  means     the system or another program ended it at once, so Python could not clean up\n"
        "  likely    the system ran out of memory, or someone ran `kill -9`\n"
        "  printed   step 39\n"
        "            step 40 | loss 2.31\n"
        "  log       /logs/rank2.log\n"
        "  others    rank 1 finished\n"
        "  others    rank 3 is still inside the cell (in C code, stopped, or in code that ignores "
        "interrupts); if it does not come back: %ddp restart\n"
        "rank 0\n<traceback of RuntimeError: connection closed>\n\n"
        "  next      %ddp restart   (ranks 0-1,3 would lose their variables too)"
    )
    assert error.by_rank[2] == ("RankExited", "SIGKILL (signal 9)")


#: JupyterLab's: it makes a link of each match in text, and has nothing to open outside its folder.
PATH_LINK = re.compile(r"((?:~|\.)?(?:/[\w.-]*)+)")


def test_the_displayed_error_has_no_path_that_jupyterlab_would_link():
    error = cell_error(died(0), ok(1))
    assert "  log       /logs/rank0.log" in text(error)
    (displayed,) = error._render_traceback_()
    assert "  log       %ddp log 0 shows its end" in displayed
    assert not PATH_LINK.search(displayed)


def test_a_kill_that_was_not_for_memory():
    exited = RankExited(
        rank=2, pid=7, exit_code=-9, out_of_memory=False, last_output="", counts_memory_kills=True
    )
    likely = (
        "someone, or the cell, ran `kill -9`. Memory was not short: the kernel has killed no "
        "process for that"
    )
    assert describe_exit(exited) == ("SIGKILL (signal 9)", likely)
    assert (
        "ran out of memory" in describe_exit(msgspec.structs.replace(exited, out_of_memory=True))[1]
    )


def test_only_the_last_lines_are_shown():
    message = text(cell_error(died(0, printed="".join(f"line {n}\n" for n in range(20)))))
    assert "line 13\n" not in message
    assert "printed   line 14\n" in message
    assert "            line 19\n" in message


def test_the_death_of_all_ranks():
    message = text(cell_error(*(died(rank, exit_code=3) for rank in range(6))))
    assert message.startswith(
        "RankExitedError: ranks 0-5 exited with code 3 while they ran cell [7]\n"
    )
    assert message.count("exit code 3, pid") == MAX_FULL
    assert "  and ranks 4-5\n" in message
    assert message.endswith("  next      %ddp restart")


def test_ranks_that_ended_in_different_ways():
    message = text(cell_error(died(0, exit_code=3), died(1)))
    assert message.startswith("RankExitedError: ranks 0-1 exited while they ran cell [7]\n")


def test_a_death_goes_before_a_timeout_and_an_interrupt():
    error = cell_error(died(0), unfinished(1), timed_out=True, interrupted=True)
    assert type(error) is RankExitedError


@pytest.mark.parametrize(
    ("exit_code", "cause", "text"),
    [
        (3, None, "exited with code 3"),
        (-9, None, "exited with SIGKILL (signal 9)"),
        (-9, KillRequest(), "exited, %ddp restart -r"),
        (255, UnknownStatus(), "exited, its exit status is not known"),
        (255, ForkServerEnd(None), "exited, the fork server ended"),
        (255, ForkServerEnd(1), "exited, the fork server ended (exit code 1)"),
        (255, ForkServerEnd(-9), "exited, the fork server ended (SIGKILL)"),
        (
            -9,
            LostAgent(1, AgentEnd("asked")),
            "exited, the agent of node 1 ended (it was asked to end)",
        ),
        (
            -9,
            LostAgent(1, AgentEnd("engine", text="no"), "n2"),
            "exited, the agent on n2 never came: no",
        ),
    ],
)
def test_the_exit_of_a_rank_as_part_of_a_sentence(
    exit_code: int, cause: ExitCause | None, text: str
):
    exited = died(0, exit_code).exited
    assert exited is not None
    assert str(exit_phrase(msgspec.structs.replace(exited, cause=cause))) == text


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
    described, cause = describe_exit(exited)
    assert described == how
    assert likely in cause
    assert bool(cause) == bool(likely)


@pytest.mark.parametrize("signum", sorted(signal.valid_signals()))
def test_every_signal_has_words(signum: int):
    exited = died(0, -signum).exited
    assert exited is not None
    assert f"(signal {int(signum)})" in describe_exit(exited)[0]


def test_out_of_memory_is_named_when_it_is_known():
    message = text(cell_error(died(0, out_of_memory=True)))
    assert "the system ran out of memory and the kernel ended this process" in message
    assert "kill -9" not in message


FAULT = """Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "<ipython-input-7-af3e>", line 3 in crash
  File "<ipython-input-7-af3e>", line 5 in <module>
  File "/venv/IPython/core/interactiveshell.py", line 3553 in run_code
  File "/work/nbddp/rank/cells/executor.py", line 130 in _run
"""


def test_the_stack_of_a_crash_ends_where_the_cell_began():
    message = text(cell_error(died(0, -11, fault=FAULT)))
    assert (
        "  at        /usr/lib/python3.11/ctypes/__init__.py, line 519, in string_at\n"
        "  called by cell [7], line 3, in crash\n"
        "  called by cell [7], line 5, in <module>\n"
    ) in message
    assert "IPython" not in message
    assert "executor.py" not in message


def test_ranks_whose_node_was_given_up_were_lost():
    cause = LostAgent(1, AgentEnd("silent", 60, "n2"))
    results = [RankResult(0, "ok", elapsed_s=1.0)]
    for rank in (2, 3):
        exited = RankExited(
            rank=rank, pid=7, exit_code=-9, out_of_memory=False, last_output="", cause=cause
        )
        results.append(RankResult(rank, "exited", elapsed_s=61.1, exited=exited))
    outcome = RunOutcome("run1", {each.rank: each for each in results}, 61.1)
    [finding] = exit_report(outcome).findings
    assert finding.headline == "Ranks 2-3 were lost."
    assert finding.ranks[2].predicate.describe(2) == (
        "were lost: node 1 was given up (nothing was heard of n2 for 60 s), 61.1 s after the cell "
        "began"
    )
    message = text(cell_error(*results))
    assert "ranks 2-3 were lost during cell [7]" in message
    assert "exited," not in message


def test_the_known_cause_of_an_exit_is_told_without_a_guess():
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
                cause=LostAgent(0, AgentEnd("exited", 1)),
            ),
        )
        for rank in (0, 1)
    ]
    text = str(cell_error(*results))
    assert text.count(how) == 2
    assert text.count("No space left on device") == 1
    assert "likely" not in text
    assert "SIGKILL" not in text


@pytest.mark.parametrize(
    ("node", "step"),
    [
        (1, "%ddp restart -r 1 asks for another agent in the place of node 1"),
        (
            0,  # it had the store
            "pull what you need (x = %ddp pull x -r 0), then %ddp restart asks for another agent",
        ),
    ],
)
def test_the_next_step_after_a_node_was_lost(node: int, step: str):
    lost = died(1)
    assert lost.exited is not None
    cause = LostAgent(node, AgentEnd("silent", 60, "n2"))
    lost = msgspec.structs.replace(lost, exited=msgspec.structs.replace(lost.exited, cause=cause))
    message = " ".join(str(cell_error(ok(0), lost, is_plain=False)).split())
    assert step in message
    assert "rank 0 keeps its variables" in message


@pytest.mark.parametrize(("log", "is_shown"), [("n2:/tmp/rank1.log", False), ("/rank1.log", True)])
def test_a_log_on_a_lost_machine_is_not_offered(log: str, is_shown: bool):
    lost = died(1)
    assert lost.exited is not None
    cause = LostAgent(1, AgentEnd("silent", 60, "n2"))
    lost = msgspec.structs.replace(lost, exited=msgspec.structs.replace(lost.exited, cause=cause))
    error = build.cell_error(RunOutcome("r", {0: ok(0), 1: lost}, 4.0), "cell [7]", {1: log})
    assert error is not None
    assert log in str(error)
    assert ("%ddp log 1" in "".join(error._render_traceback_())) == is_shown


# --- other ranks ---------------------------------------------------------------------------------


def test_a_connection_that_broke_with_a_rank_gets_a_line():
    info = ErrorInfo(
        ename="CollectiveFailedError",
        evalue="Connection closed by peer",
        traceback=["Cell In[7], line 3\n----> 3 dist.all_reduce(x)"],
        site=site(3),
    )
    lost = RankResult(0, "error", error=info)
    message = text(cell_error(lost, died(1), is_plain=False))
    assert "  others    rank 0 waited (cell [7], line 3) and was freed\n" in message
    assert "Connection closed" not in message
    # Without a rank that exited, the error is all that is known.
    assert "Cell In[7], line 3" in text(cell_error(lost, ok(1)))


def test_interrupted_ranks_are_not_said_to_have_waited_for_a_dead_rank():
    idle = [freed(rank, 3, "KeyboardInterrupt") for rank in (0, 1)]
    message = text(cell_error(*idle, freed(2, 4), died(3), is_plain=False))
    assert "  others    ranks 0-1 were interrupted (cell [7], line 3)\n" in message
    assert "  others    rank 2 waited (cell [7], line 4) and was freed\n" in message


# --- replaced ranks ------------------------------------------------------------------------------


def test_a_rank_that_was_replaced():
    error = cell_error(freed(0), ok(1), died(2), freed(3), fresh=RankSet.of([2]), is_plain=False)
    assert type(error) is RankExitedError
    assert "  others    rank 1 finished\n" in text(error)
    assert "  others    ranks 0,3 waited (cell [7], line 5) and were freed\n" in text(error)
    assert text(error).endswith(
        "  replaced  rank 2 was replaced by a fresh process: its variables are gone, "
        "those of ranks 0-1,3 are kept\n"
        "  next      Remove what ended rank 2. Then run %ddp catchup to give its new process the "
        "variables that it lacks, and run the cell again"
    )


def test_catchup_is_not_advised_for_cells_that_it_does_not_know():
    message = text(
        cell_error(freed(0), died(2), fresh=RankSet.of([2]), is_plain=False, knows_cells=False)
    )
    assert message.endswith(
        "  next      Remove what ended rank 2. Then define its variables in a cell that begins "
        "with %%ddp -r 2 or copy data: x = %ddp pull x -r 0, then %ddp push x -r 2; make a DDP "
        "model on all ranks, since rank 2 alone would wait there. %ddp catchup runs cells since "
        "%ddp attach only, and says how to keep the old values"
    )


STRUCK = "rank 2 was killed, cell [7], line 5, step 1"


def test_the_step_after_a_kill_on_purpose_does_not_blame_the_code():
    results, fresh = [freed(0), ok(1), died(2)], RankSet.of([2])
    message = text(cell_error(*results, fresh=fresh, is_plain=False, injected=(STRUCK,)))
    assert message.endswith(
        "  next      Run %ddp catchup to give its new process the variables that it lacks, and run "
        "the cell again"
    )
    assert "Remove" not in message


def test_a_fault_on_purpose_comes_before_the_exit_that_it_caused():
    results = raised(0), died(2)
    message = text(cell_error(*results, fresh=RankSet.of([2]), is_plain=False, injected=(STRUCK,)))
    first, second, *others = message.split("\n")
    assert first == f"fault on purpose: {STRUCK}"
    assert second.startswith("RankExitedError: rank 2 exited with SIGKILL")
    assert "fault on purpose" not in "\n".join(others)
    assert "<traceback of ValueError: bad>" in others


def test_all_ranks_were_replaced():
    message = text(cell_error(died(0), died(1), fresh=RankSet.all(2), is_plain=False))
    assert message.endswith(
        "  replaced  ranks 0-1 were replaced by fresh processes: their variables are gone\n"
        "  next      run the cells that define them again"
    )


def test_a_rank_that_could_not_be_replaced():
    message = text(
        cell_error(ok(0), died(1), rebuild_failure="rank 1 was not ready", is_plain=False)
    )
    assert message.endswith(
        "  pool      it could not be repaired: rank 1 was not ready\n"
        "  next      %ddp restart   (rank 0 would lose its variables too)"
    )


def test_a_rank_that_is_not_to_be_replaced():
    message = text(cell_error(ok(0), died(1), ok(2), is_plain=False))
    assert message.endswith("  next      %ddp restart -r 1   (ranks 0,2 keep their variables)")


def test_the_words_after_a_restart_of_ranks():
    assert restarted_text(RankSet.of([2]), RankSet.of([0, 1, 3])) == (
        "rank 2 is a fresh process: its variables are gone, those of ranks 0-1,3 are kept. "
        "Next: %ddp catchup makes its variables again: it runs the cells that define them, "
        "and modules and optimizers get the state of rank 0"
    )
    assert restarted_text(RankSet.of([0, 1]), RankSet.of([2])).startswith(
        "ranks 0-1 are fresh processes: their variables are gone, those of rank 2 are kept. "
        "Next: %ddp catchup makes their variables again: ranks 0-1 run the cells that define them, "
    )
    assert restarted_text(RankSet.all(2), RankSet()).endswith("their variables are gone")
    after_attach = restarted_text(RankSet.of([2]), RankSet.of([0, 1]), knows_cells=False)
    assert after_attach.endswith(
        "those of ranks 0-1 are kept. Next: define its variables in a cell that begins with %%ddp "
        "-r 2 or copy data: x = %ddp pull x -r 0, then %ddp push x -r 2; make a DDP model on all "
        "ranks, since rank 2 alone would wait there. %ddp catchup runs cells since %ddp attach "
        "only, and says how to keep the old values"
    )


@pytest.mark.parametrize(
    ("kept", "failure", "words"),
    [
        ([0], "", "was replaced by a fresh process: its variables are gone, those of rank 0"),
        ([], "", "was replaced by a fresh process: its variables are gone"),
        ([0], "no memory", "could not be replaced: no memory"),
    ],
)
def test_an_exit_between_cells(kept: list[int], failure: str, words: str):
    message = idle_exit_text(1, "SIGKILL (signal 9)", RankSet.of(kept), failure)
    assert message.startswith("rank 1 exited (SIGKILL (signal 9)) and ")
    assert words in message


def test_groups_with_a_dead_member_are_not_said_to_be_ready():
    told = report("missing-rank")
    message = text(cell_error(freed(0), ok(1), report=told, dead=RankSet.of([2]), is_plain=False))
    assert "ready again" not in message
    assert "groups with rank 2, which exited, need %ddp restart -r 2" in message
