"""Asks the user a question by the front end's ``input()``, or says why nobody can be asked.

Runs in: the thread that waits for the cell.
"""

import builtins
import getpass
from typing import Final

from IPython.core.error import StdinNotImplementedError
from IPython.core.getipython import get_ipython

#: These are equal on all ranks, so that their errors are shown once.
NO_STDIN: Final = "input was asked for, and this front end cannot ask the user"
IN_BACKGROUND: Final = (
    "input was asked for, and a cell in the background asks no questions. Next: run it without "
    "--async, or, if another kernel began it, %ddp attach --wait"
)
_NO_USER: Final = (
    "input was asked for, and this notebook runs without a user "
    "(nbclient, papermill, nbconvert and background cells have no stdin)"
)


def ask(prompt: str, *, is_secret: bool) -> str:
    """Return the answer of the user.

    Args:
        prompt: shown before the answer.
        is_secret: the answer is not shown.

    Raises:
        EOFError: the notebook runs without a user, or the user has ended the input.
        KeyboardInterrupt: the user interrupted the question.
    """
    try:
        return getpass.getpass(prompt) if is_secret else builtins.input(prompt)
    except StdinNotImplementedError:
        raise EOFError(_NO_USER) from None


def why_nobody_answers() -> str:
    """Return why `ask` would raise `EOFError`, as far as it is known before; empty: it asks."""
    # The kernel itself tells it only when it is asked.
    kernel = getattr(get_ipython(), "kernel", None)
    return "" if getattr(kernel, "_allow_stdin", True) else _NO_USER
