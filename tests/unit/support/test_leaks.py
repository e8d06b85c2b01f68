"""The check that a test leaves nothing behind."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support import leaks

#: Starts a helper for each line that it reads, as a browser does.
_PROGRAM = """
import subprocess, sys
helpers = []
for _ in sys.stdin:
    helpers.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
    print(helpers[-1].pid, flush=True)
for helper in helpers:
    helper.communicate(b"\\n")
"""


@pytest.fixture
def program() -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", _PROGRAM]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        yield running


def _start_helper(program: "subprocess.Popen[str]") -> int:
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write("\n")
    program.stdin.flush()
    return int(program.stdout.readline())


def test_a_process_that_came_since_is_named(program: "subprocess.Popen[str]"):
    before = leaks.take_snapshot(None)
    helper = _start_helper(program)
    (found,) = leaks.differences(before, leaks.take_snapshot(None))
    assert found.startswith(f"process {helper} (parent {program.pid}")


def test_helpers_of_a_lasting_program_belong_to_no_test(
    program: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(leaks, "LASTING", {program.pid})
    before = leaks.take_snapshot(None)
    _start_helper(program)
    assert leaks.differences(before, leaks.take_snapshot(None)) == []
