"""The syntax check before a cell is sent: one error instead of one per rank.

Runs in: the notebook's process, without torch: IPython transforms the cell, Python compiles it.
"""

import ast
import re
import warnings

from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import InteractiveShell

from nbddp.errors import NbddpError

#: IPython's name for a cell that was typed in `nbddp console`.
_NO_NUMBER = re.compile(r"Cell(?:\x1b\[[\d;]*m|\s)*In\[0\]")


class CellSyntaxError(NbddpError):
    """The cell is not Python; nothing was sent to any rank."""

    rendered: list[str]

    def _render_traceback_(self) -> list[str]:
        return self.rendered


def check(shell: InteractiveShell, cell: str, *, first_line: int, execution_count: int) -> None:
    """Check the syntax of a cell.

    Args:
        shell: transforms and compiles the cell.
        cell: the code.
        first_line: the number of the notebook cell's line on which the code begins.
        execution_count: the number of the cell.

    Raises:
        CellSyntaxError: the cell has a syntax error; it shows the cell's number and line.
    """
    # IPython drops empty lines at the top of a cell; the reader counts them.
    blank_lines = cell[: -len(cell.lstrip()) or None].count("\n")
    padding = "\n" * (first_line - 1 + blank_lines)
    try:
        transformed = shell.transform_cell(cell)
        source = padding + transformed
        name = shell.compile.cache(source, execution_count, raw_code=padding + cell)
        # Compiled to byte code: parsing alone does not find "'return' outside function".
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | shell.compile.flags
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks print warnings, once
            compile(source, name, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError) as error:
        raise _to_syntax_error(shell, error) from None


def check_source(code: str) -> None:
    """Check the syntax of code outside a notebook cell: Python, magics, ``!`` lines.

    Raises:
        SyntaxError: ``code`` is none of these.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks print warnings, once
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            source = TransformerManager().transform_cell(code)
            compile(source, "<code>", "exec", flags, dont_inherit=True)
    except (ValueError, OverflowError) as error:
        raise SyntaxError(str(error)) from None


def _to_syntax_error(shell: InteractiveShell, error: Exception) -> CellSyntaxError:
    syntax_error = CellSyntaxError(f"{type(error).__name__}: {error}")
    lines = shell.SyntaxTB.structured_traceback(type(error), error, None)
    syntax_error.rendered = [_NO_NUMBER.sub("Console cell", line) for line in lines]
    return syntax_error
