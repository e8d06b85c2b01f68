"""``%ddp config``: show what happens when ranks disagree, or change it.

Runs in: the notebook's process, thread of the running cell.
"""

import argparse
from collections.abc import Sequence

from IPython.core.interactiveshell import InteractiveShell

from nbddp.controller.state.config import LEGAL_CONFIG, config_error
from nbddp.errors import BadOptionError
from nbddp.notebook import session
from nbddp.notebook.magics.arg_parser import Parser

_EXPLAINED = {
    "on_deadlock": "or report: shown, and left to you",
    "on_mismatch": "before data moves; or warn, off",
    "on_death": "a fresh rank takes the place of a dead one; or keep",
}
#: The lines of the help: each setting with its default.
ROWS = tuple((f"    {name}={legal[0]}", _EXPLAINED[name]) for name, legal in LEGAL_CONFIG.items())


class ConfigParser(Parser):
    """Reads ``on_deadlock=report ...``; gives ``changes``."""

    def parse(self, words: list[str]) -> argparse.Namespace:
        """Read the words. Raises `BadOptionError`."""
        changes: dict[str, str] = {}
        for word in words:
            name, _, value = word.partition("=")
            if fault := config_error(name, value):
                raise BadOptionError(f"{self.prog}: {fault}. Next: %ddp help")
            if changes.get(name, value) != value:
                legal = " or ".join(f"{name}={each}" for each in LEGAL_CONFIG[name])
                raise BadOptionError(f"{self.prog}: {name} has two values; legal: one of {legal}")
            changes[name] = value
        return argparse.Namespace(changes=changes)

    def completions(self, before: Sequence[str]) -> list[str]:
        """What may come next behind the words ``before``."""
        used = {word.partition("=")[0] for word in before}
        left = [name for name in LEGAL_CONFIG if name not in used]
        return [f"{name}={value}" for name in left for value in LEGAL_CONFIG[name]]


def configure(shell: InteractiveShell, *, changes: dict[str, str]) -> None:
    """Change these settings, and show all. Raises as `Pool.configure`."""
    pool = session.pool()
    config = pool.configure(**changes) if changes else pool.config
    for name, legal in LEGAL_CONFIG.items():
        print(f"{f'{name}={getattr(config, name)}':<20} legal: {', '.join(legal)}")
