"""What a line of ``%ddp`` or ``%%ddp`` is: how it is read, what it does, what the help says of it.

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

    parser: Parser  #: has the options, each with its help
    summary: str
    usage: str = ""  #: what the help says in the place of the parser's `usage_line`
    rows: tuple[tuple[str, str], ...] = ()  #: more of the help: what to write, what it does


@dataclass(frozen=True, kw_only=True)
class Verb(Line):
    """A verb of ``%ddp``.

    Args:
        action: takes the shell, and each argument of the parser by its name; what it gives is what
            the line gives.
        takes: whose names Tab offers.
    """

    action: Callable[..., Any]
    takes: Literal["", "names of ranks", "names of the notebook"] = ""

    @property
    def name(self) -> str:
        """``start``."""
        return self.parser.prog.split()[-1]

    def run(self, shell: InteractiveShell, text: str) -> Any:
        """Do what the line says.

        Args:
            shell: in which it was written.
            text: what stands behind the verb.

        Raises:
            BadOptionError: it is not legal; the message says what is.
            NbddpError: what the action raises.
        """
        return self.action(shell, **vars(self.parser.read(text)))
