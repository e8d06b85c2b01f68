"""Commands that a relay on a login node runs."""

from types import SimpleNamespace
from typing import Any, SupportsIndex, cast

from nbddp.controller.launch.relayed_commands import RelayedCommands, RelayedProgram


class Lines(list[str]):
    """The lines of a program that writes another one while they are read."""

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        read = super().__getitem__(key)
        self.append("later")
        return read


def test_a_line_that_comes_while_another_thread_reads_is_read_next_time():
    lines = Lines(["now"])
    commands = cast("RelayedCommands", SimpleNamespace(program_lines=lambda number: lines))
    program = RelayedProgram(commands, 0, "srun")
    read, end = program.lines(0)
    assert read == ["now"]
    assert program.lines(end)[0] == ["later"]
