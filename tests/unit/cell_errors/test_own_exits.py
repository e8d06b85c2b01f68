"""The call by which a rank ended its own process."""

from dataclasses import replace

import msgspec
import pytest

from nbddp.controller.cell_errors import cell_error, exit_calls, exit_report
from nbddp.controller.diagnosis import Code
from nbddp.controller.state import RunOutcome
from tests.support.cell_errors import died, freed

_KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def calls(code: str, *, exit_code: int = -9) -> dict[int, str]:
    """The calls that are found when rank 1 of three has exited."""
    result = died(1)
    assert result.exited is not None
    ended = msgspec.structs.replace(
        result, exited=msgspec.structs.replace(result.exited, exit_code=exit_code)
    )
    outcome = RunOutcome("r", {0: freed(0), 1: ended, 2: freed(2)}, 4.0)
    return exit_calls(outcome, Code(code), 3)


def test_a_call_inside_a_condition_about_ranks():
    line = f"line 2: `{_KILL}`, inside `if rank == 1:` (line 1)"
    assert calls(f"if rank == 1:\n    {_KILL}") == {1: line}
    assert calls(f"if ready:\n    {_KILL}") == {
        1: f"line 2: `{_KILL}`, inside `if ready:` (line 1)"
    }
    assert calls(f"if rank == 1: {_KILL}") == {1: f"line 1: `if rank == 1: {_KILL}`"}
    assert calls(_KILL) == {1: f"line 1: `{_KILL}`"}
    assert calls("os._exit(3)", exit_code=3) == {1: "line 1: `os._exit(3)`"}


@pytest.mark.parametrize(
    "code",
    [
        "loss.backward()",
        f"if rank == 0:\n    {_KILL}",  # another rank, and perhaps not its own process
        f"{_KILL}\nos.abort()",
        "os.kill(child.pid, 9)",  # a process of the user's code
        "os._exit(3)",  # that gives a code, and no signal
        "if rank == 1:\n    kill(",
    ],
)
def test_no_call_or_several(code: str):
    assert calls(code) == {}


def test_the_error_names_the_call_in_place_of_guesses():
    outcome = RunOutcome("r", {0: freed(0), 1: died(1)}, 4.0)
    outcome = replace(outcome, exit_calls=exit_calls(outcome, Code(_KILL), 2))
    finding = exit_report(outcome).findings[0]
    assert finding.suspicions == (f"line 1: `{_KILL}`",)
    outcome = replace(outcome, report=exit_report(outcome))
    error = cell_error(outcome, "cell [7]", {})
    assert error is not None
    assert f"\n  likely    line 1: `{_KILL}`\n" in str(error)
    [shown] = error._render_traceback_()
    assert f"\n  likely    line 1: `{_KILL}`\n" in shown
    assert not any(word in shown for word in ("means", "Memory", "seen"))
