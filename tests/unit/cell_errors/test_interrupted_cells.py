"""The error of a cell that an interrupt, a timeout, a command or the debugger ended."""

import pytest

from nbddp.controller.cell_errors import interrupted_catch_up
from nbddp.controller.state.outcome import RankResult
from nbddp.errors import CellError, CellInterruptedError, CellTimeoutError
from nbddp.wire.flight_recorder.schema import ExceptionLine
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.rank_set import RankSet
from tests.support.cell_errors import (
    cell_error,
    freed,
    mismatch,
    ok,
    raised,
    report,
    site,
    text,
    unfinished,
)

KEPT = "  kept      every variable is kept"
NEXT = "  next      run the next cell, or this one again"

# --- cells that ended with ranks inside ----------------------------------------------------------


def test_a_cell_that_was_given_up():
    assert text(cell_error(ok(0), unfinished(1), interrupted=True)) == (
        "rank 0 finished\n"
        "rank 1 is still inside the cell (in C code, stopped, or in code that ignores interrupts); "
        "if it does not come back: %ddp restart\n"
        "CellInterruptedError: cell [7] was interrupted"
    )


def test_a_cell_that_ended_with_its_ranks_inside():
    """No interrupt came and no timeout passed: the hub has ended."""
    error = cell_error(ok(0), unfinished(1))
    assert type(error) is CellError
    assert text(error) == (
        "rank 0 finished\n"
        "rank 1 is still inside the cell (in C code, stopped, or in code that ignores interrupts); "
        "if it does not come back: %ddp restart\n"
        "CellError: cell [7] ended before rank 1 had finished"
    )


@pytest.mark.parametrize("command", ["%ddp stop", "%ddp restart"])
def test_a_cell_that_a_command_ended(command: str):
    error = cell_error(ok(0), unfinished(1), ended_by=command, interrupted=True)
    assert type(error) is CellError
    assert text(error) == f"CellError: cell [7] was ended by {command} before rank 1 had finished"


# --- interrupts and timeouts ---------------------------------------------------------------------


def test_an_interrupt():
    error = cell_error(
        raised(0, "KeyboardInterrupt", ""), raised(1, "KeyboardInterrupt", ""), interrupted=True
    )
    assert type(error) is CellInterruptedError
    assert text(error) == (
        "ranks 0-1\n<traceback of KeyboardInterrupt: >\n\n"
        f"CellInterruptedError: cell [7] was interrupted\n{KEPT}\n{NEXT}"
    )
    assert error.by_rank[0] == ("KeyboardInterrupt", "")


def test_a_timeout():
    error = cell_error(raised(0, "KeyboardInterrupt", ""), ok(1), timed_out=True, timeout_s=2.5)
    assert text(error).endswith(
        f"CellTimeoutError: cell [7] ran longer than its --timeout of 2.5 s\n{KEPT}\n"
        "  next      give it a longer --timeout or less work, and run it again"
    )


def test_a_timeout_goes_before_an_interrupt():
    error = cell_error(
        ok(0), unfinished(1), unfinished(2), timed_out=True, interrupted=True, timeout_s=2.5
    )
    assert type(error) is CellTimeoutError
    assert text(error) == (
        "rank 0 finished\n"
        "ranks 1-2 are still inside the cell (in C code, stopped, or in code that ignores "
        "interrupts); if they do not come back: %ddp restart\n"
        "CellTimeoutError: cell [7] ran longer than its --timeout of 2.5 s"
    )


# --- interrupts beside other errors, and the debugger --------------------------------------------


def test_a_rank_that_left_the_debugger_made_no_error():
    left = raised(1, "BdbQuit", "", at_ns=1)
    error = cell_error(freed(0), left, freed(2), report=report("left-debugger"), is_plain=False)
    assert type(error) is CellInterruptedError
    kept = f"{KEPT}; the process groups are ready again\n{NEXT}"
    assert text(error) == (
        "ranks 0,2 waited in all_reduce #17 (cell [7], line 5) and were freed\n"
        f"CellInterruptedError: rank 1 left the debugger\n{kept}"
    )
    # The line above has said the rest.
    [shown] = error._render_traceback_()
    assert shown.splitlines()[0].endswith(": rank 1 left the debugger")
    assert shown.splitlines()[1:] == kept.splitlines()


def test_all_ranks_left_the_debugger():
    error = cell_error(raised(0, "BdbQuit", "", at_ns=1), raised(1, "BdbQuit", "", at_ns=2))
    assert type(error) is CellInterruptedError
    assert text(error) == f"CellInterruptedError: ranks 0-1 left the debugger\n{KEPT}\n{NEXT}"


def test_an_error_tells_more_than_a_debugger_that_was_left():
    error = cell_error(raised(0, "BdbQuit", "", at_ns=1), raised(1, at_ns=2))
    assert type(error) is CellError
    assert text(error) == (
        "rank 1\n<traceback of ValueError: bad>\n\n"
        "rank 0 left the debugger\n"
        "CellError: rank 1 raised ValueError: bad"
    )


def test_ranks_that_an_interrupt_ended_get_a_line_each():
    error = cell_error(
        freed(0, ename="KeyboardInterrupt"),
        raised(1, "KeyboardInterrupt", ""),
        interrupted=True,
        is_plain=False,
    )
    assert type(error) is CellInterruptedError
    assert text(error) == (
        "rank 1\n<traceback of KeyboardInterrupt: >\n\n"
        "rank 0 was interrupted (cell [7], line 5)\n"
        f"CellInterruptedError: cell [7] was interrupted\n{KEPT}\n{NEXT}"
    )


def test_a_mismatch_caused_by_an_interrupt_is_told_as_an_interrupt():
    info = ErrorInfo(
        ename="CollectiveMismatchError",
        evalue="broadcast against all_reduce",
        traceback=["<traceback>"],
        handling=ExceptionLine(name="KeyboardInterrupt", site=site(3)),
    )
    wrong = RankResult(1, "error", error=info, failed_at_ns=1, mismatches=(mismatch(),))
    error = cell_error(freed(0, ename="KeyboardInterrupt"), wrong, interrupted=True, is_plain=False)
    assert type(error) is CellInterruptedError
    assert (
        "CellInterruptedError: cell [7] was interrupted; rank 1 then made a call that does not "
        "match: rank 0 called all_reduce, rank 1 called broadcast" in text(error)
    )
    assert (
        "  before    rank 1 was interrupted (cell [7], line 3), and was here while handling it\n"
        in text(error)
    )


def test_calls_after_an_interrupt_are_told_so_where_all_ranks_have_handled_it():
    info = ErrorInfo(
        ename="CollectiveMismatchError",
        evalue="broadcast against all_reduce",
        traceback=["<traceback>"],
        handling=ExceptionLine(name="KeyboardInterrupt", site=site(3)),
    )
    first, second = (
        RankResult(rank, "error", error=info, failed_at_ns=rank, mismatches=(mismatch(),) * rank)
        for rank in (0, 1)
    )
    error = cell_error(first, second, interrupted=True, is_plain=False)
    assert (
        "CellInterruptedError: cell [7] was interrupted; after that, rank 0 called all_reduce, "
        "rank 1 called broadcast" in text(error)
    )
    assert (
        "  before    ranks 0-1 were interrupted (cell [7], line 3), and were here while handling "
        "it\n" in text(error)
    )


def test_an_error_before_the_interrupt_is_that_of_the_cell():
    error = cell_error(
        raised(1, at_ns=1),
        raised(0, "KeyboardInterrupt", "", at_ns=2),
        interrupted=True,
        raised_before=RankSet.of([1]),
    )
    assert type(error) is CellError
    assert text(error).endswith("CellError: rank 1 raised ValueError: bad")


def test_a_catch_up_that_was_stopped_is_to_run_again():
    of_cell = CellInterruptedError("CellInterruptedError: cell [5] was interrupted\n  next  ...")
    of_cell.headline = "CellInterruptedError: cell [5] was interrupted"
    error = interrupted_catch_up(of_cell, RankSet.of([1]), ["step", "slow"], "%ddp catchup")
    assert str(error) == (
        "CellInterruptedError: %ddp catchup was interrupted: rank 1 still lacks step, slow\n"
        "  where     cell [5]\n"
        "  kept      every variable that a rank had before\n"
        "  next      run %ddp catchup again"
    )
    assert error.headline == str(error).partition("\n")[0]
    names = [f"n{number}" for number in range(9)]
    many = interrupted_catch_up(of_cell, RankSet.of([1, 2]), names, "%ddp catchup -r 1-2")
    assert "ranks 1-2 still lack n0, n1, n2, n3, n4, n5, n6, n7 and more\n" in str(many)
    none = interrupted_catch_up(of_cell, RankSet.of([1, 2]), [], "%ddp catchup -r 1-2")
    assert "interrupted: ranks 1-2 have their variables as before\n" in str(none)
