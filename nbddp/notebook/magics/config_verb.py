"""``%ddp config``: show or change the reactions to deadlocks, mismatches and deaths.

Runs in: the notebook's process, thread of the running cell.
"""

import argparse
from collections.abc import Sequence

from IPython.core.interactiveshell import InteractiveShell

from nbddp.controller.state import LEGAL_CONFIG, config_error
from nbddp.errors import BadOptionError
from nbddp.notebook import session
from nbddp.notebook.magics.arg_parser import Parser

_EXPLANATIONS = {
    "on_deadlock": "or debug: ask you first; or report: only show it",
    "on_mismatch": "raises an error; or warn, off",
    "on_death": "a fresh rank takes the place of a dead one; or keep",
    "sanitize": "or on, data, all: each cell runs as with %%ddp --sanitize",
}
#: The lines of the help: each setting with its default.
ROWS = tuple(
    (f"    {name}={legal[0]}", _EXPLANATIONS[name]) for name, legal in LEGAL_CONFIG.items()
)


class ConfigParser(Parser):
    """A parser of ``on_deadlock=report ...``; its namespace has ``changes``."""

    def parse(self, words: list[str]) -> argparse.Namespace:
        """Read the words.

        Raises:
            BadOptionError: a name or value is not legal, or a name has two values.
        """
        changes: dict[str, str] = {}
        for word in words:
            name, _, value = word.partition("=")
            if fault := config_error(name, value):
                raise BadOptionError(f"{self.prog}: {fault}. Next: %ddp help")
            if changes.get(name, value) != value:
                legal = " or ".join(f"{name}={choice}" for choice in LEGAL_CONFIG[name])
                raise BadOptionError(f"{self.prog}: {name} has two values; legal: one of {legal}")
            changes[name] = value
        return argparse.Namespace(changes=changes)

    def completions(self, before: Sequence[str]) -> list[str]:
        """The words that may follow the words ``before``."""
        used = {word.partition("=")[0] for word in before}
        unused = [name for name in LEGAL_CONFIG if name not in used]
        return [f"{name}={value}" for name in unused for value in LEGAL_CONFIG[name]]


def configure(shell: InteractiveShell, *, changes: dict[str, str]) -> None:
    """Change settings, and show all of them.

    Args:
        shell: not used.
        changes: new values by name; empty: nothing is changed.

    Raises:
        BadOptionError: a name or value is not legal; nothing was changed.
        NoPoolError: no pool is running.
    """
    pool = session.pool()
    config = pool.configure(**changes) if changes else pool.config
    for name, legal in LEGAL_CONFIG.items():
        print(f"{f'{name}={getattr(config, name)}':<20} legal: {', '.join(legal)}")
