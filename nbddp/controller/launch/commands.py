"""The machine whose commands start agents: the notebook's own, or one that ssh reaches.

Runs in: the notebook's process.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from nbddp.controller.launch import engine_process
from nbddp.controller.launch.engine_process import EngineProcess
from nbddp.wire.invitation import Invitation


class Program(Protocol):
    """A program that starts agents and lives as long as they do."""

    def end(self) -> str:
        """Return ``ended with exit code 1 and said: ...``; empty: it runs."""

    @property
    def exit_code(self) -> int | None:
        """Its exit code, once `end` has told how it ended; None: it is not known."""

    def lines(self, since: int) -> tuple[list[str], int]:
        """Return the lines of its output from a place on that was returned, or 0; and their end."""

    def close_input(self) -> None:
        """End the standard input, and with it the agents."""

    def stop(self, patience_s: float) -> None:
        """End the program, with these seconds before each stronger means."""


class Commands(Protocol):
    """The commands of a machine."""

    def ask(self, words: Sequence[str]) -> str:
        """Return the output of a command that ends soon; empty: it gave none."""

    def start(
        self, words: Sequence[str], invitation: Invitation, env: Mapping[str, str] | None = None
    ) -> Program:
        """Start a program.

        Args:
            words: of its command line.
            invitation: its standard input gets it.
            env: its environment if it runs on the notebook's machine; None: that of this process.
        """

    def state(self) -> str:
        """Say what is not there yet; empty: commands can run."""

    def failure(self) -> str:
        """Return why no command can run any more; empty: they can."""

    def stop(self) -> None:
        """End the connection to the machine, if there is one."""


class OwnCommands:
    """Those of the notebook's own machine."""

    def ask(self, words: Sequence[str]) -> str:
        """Run a command that ends soon."""
        return engine_process.ask(words)

    def start(
        self, words: Sequence[str], invitation: Invitation, env: Mapping[str, str] | None = None
    ) -> Program:
        """Start a program."""
        return EngineProcess(words, invitation, env)

    def state(self) -> str:
        """Return nothing: this machine is there."""
        return ""

    def failure(self) -> str:
        """Return nothing, as above."""
        return ""

    def stop(self) -> None:
        """End nothing."""
