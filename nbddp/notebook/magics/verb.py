"""A line of ``%ddp`` or ``%%ddp``: its parser, its action, its help.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from IPython.core.interactiveshell import InteractiveShell

from nbddp.notebook.magics.arg_parser import Parser


@dataclass(frozen=True)
class Line:
    """A line as the help and completion know it."""

    parser: Parser  #: the options, each with its help
    summary: str
    usage: str = ""  #: a usage line for the help, in place of the parser's `usage_line`
    rows: tuple[tuple[str, str], ...] = ()  #: more rows of the help: a usage, its explanation


@dataclass(frozen=True, kw_only=True)
class Verb(Line):
    """A verb of ``%ddp``.

    Args:
        action: takes the shell, and each argument of the parser by its name; returns the value of
            the line.
        takes: the names that Tab offers; empty: none.
    """

    action: Callable[..., Any]
    takes: Literal["", "names of ranks", "names of the notebook"] = ""

    @property
    def name(self) -> str:
        """``start``."""
        return self.parser.prog.split()[-1]

    def run(self, shell: InteractiveShell, text: str) -> Any:
        """Run the action with the options of a line.

        Args:
            shell: the shell in which the line was written.
            text: the rest of the line, behind the verb.

        Raises:
            BadOptionError: the line is not legal; the message says what is.
            NbddpError: the action failed.
        """
        return self.action(shell, **vars(self.parser.read(text)))
