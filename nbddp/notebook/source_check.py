"""Finds syntax errors before a cell is sent: one error instead of one per rank.

Runs in: the notebook's process. torch is not needed: IPython transforms, Python compiles.
"""

import ast
import re
import warnings

from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import InteractiveShell

from nbddp.errors import NbddpError

#: What IPython says of a cell that was typed in `nbddp console`.
_NO_NUMBER = re.compile(r"Cell(?:\x1b\[[\d;]*m|\s)*In\[0\]")


class CellSyntaxError(NbddpError):
    """The cell is not Python; nothing was sent to any rank."""

    rendered: list[str]

    def _render_traceback_(self) -> list[str]:
        return self.rendered


def check(shell: InteractiveShell, cell: str, *, first_line: int, execution_count: int) -> None:
    """Raises `CellSyntaxError`, which shows the notebook's own cell number and line."""
    # IPython drops empty lines at the top of a cell; the reader counts them.
    blank_lines = cell[: -len(cell.lstrip()) or None].count("\n")
    padding = "\n" * (first_line - 1 + blank_lines)
    try:
        transformed = shell.transform_cell(cell)
        source = padding + transformed
        name = shell.compile.cache(source, execution_count, raw_code=padding + cell)
        # All the way to byte code: "'return' outside function" is found after parsing only.
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | shell.compile.flags
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks say it, once
            compile(source, name, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError) as error:
        raise _shown(shell, error) from None


def check_source(code: str) -> None:
    """Raises `SyntaxError` if ``code`` is not what a cell may hold: Python, magics, ``!`` lines."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks say it, once
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            source = TransformerManager().transform_cell(code)
            compile(source, "<code>", "exec", flags, dont_inherit=True)
    except (ValueError, OverflowError) as error:
        raise SyntaxError(str(error)) from None


def _shown(shell: InteractiveShell, error: Exception) -> CellSyntaxError:
    shown = CellSyntaxError(f"{type(error).__name__}: {error}")
    lines = shell.SyntaxTB.structured_traceback(type(error), error, None)
    shown.rendered = [_NO_NUMBER.sub("Console cell", line) for line in lines]
    return shown
