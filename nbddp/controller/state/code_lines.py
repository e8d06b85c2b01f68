"""Says why nothing stops or strikes at a line of a cell: no code begins there.

Runs in: the hub thread, or the thread of the running cell. Pure.
"""

import ast
import warnings
from types import CodeType


def why_not_at_line(number: int, code: str, first_line: int) -> str:
    r"""Say why no rank comes to a line; empty: ranks may come to it.

    Args:
        number: of the line in the cell of the notebook.
        code: of the ranks.
        first_line: the line of that cell on which the code begins.

    >>> why_not_at_line(1, "x = 1", 2)
    'line 1 is the line of %%ddp; the first line that runs is line 2'
    >>> why_not_at_line(3, "x = 1\n# more\n\nx += 1", 2)
    'line 3 is a comment; the next line that runs is line 5'
    """
    texts = code.splitlines()
    last = first_line + len(texts) - 1
    if number > last:
        return f"the cell has {last} line{'s' * (last != 1)}"
    lines = _lines_that_run(code, first_line)
    if lines is None or number in lines:
        return ""
    if number < first_line:
        is_own = number == first_line - 1
        why = f"line {number} {'is the line of %%ddp' if is_own else 'stands above the code'}"
        return f"{why}; the first line that runs is line {min(lines)}" if lines else why
    text = texts[number - first_line].strip()
    what = "is blank" if not text else "is a comment" if text.startswith("#") else "begins no code"
    later = [line for line in lines if line > number]
    after = f"the next line that runs is line {min(later)}" if later else "no later line runs"
    return f"line {number} {what}; {after}"


def _lines_that_run(code: str, first_line: int) -> set[int] | None:
    """The numbers of lines with code, also in functions; None: they are not known.

    Python cannot compile IPython's syntax, or code that is nested too deeply.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks print warnings, once
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            tree = compile(code, "<cell>", "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
            compiled = compile(tree, "<cell>", "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    # A coroutine begins in line 1, with or without code there.
    nodes = ast.walk(tree)
    first = min((node.lineno for node in nodes if isinstance(node, ast.expr | ast.stmt)), default=0)
    return {first_line - 1 + line for line in _lines_of(compiled) if 0 < first <= line}


def _lines_of(code: CodeType) -> set[int]:
    lines = {line for _, _, line in code.co_lines() if line}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            lines |= _lines_of(constant)
    return lines
