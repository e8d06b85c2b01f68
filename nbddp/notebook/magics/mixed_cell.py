"""A cell with lines for the notebook and code for the ranks: it is refused, and the cells to write.

Runs in: the notebook's process. Pure.

Such a cell is not run in parts: a cell has one number, one error and one entry in the history by
which a fresh rank catches up.
"""

import ast
from collections.abc import Callable, Sequence

_BETWEEN = "-------- next cell --------"


def refusal(
    code: str,
    statements: Sequence[ast.stmt],
    magics_of: Callable[[ast.stmt], list[str]],
    *,
    is_for_notebook: Callable[[ast.stmt], bool],
    ranks_line: str = "",
    notebook_line: str = "",
) -> str:
    """Say what to write in place of a cell that mixes both kinds.

    Args:
        code: the cell as written.
        statements: its statements, with magics as calls.
        magics_of: gives the magics of the notebook, as ``%name``, that a statement has anywhere.
        is_for_notebook: whether a statement is nothing but such a magic.
        ranks_line: the first line of a cell for the ranks.
        notebook_line: the first line of a cell for the notebook that has more than magics.
    """
    for statement in statements:
        magics = magics_of(statement)
        if magics and not is_for_notebook(statement):
            return _inside(magics[0], statement)
    magic = next(magics[0] for statement in statements if (magics := magics_of(statement)))
    what = f"{magic} works in the notebook's process, the rest of the cell on the ranks. "
    cells = _cells(code, statements, is_for_notebook, ranks_line, notebook_line)
    if cells is None:
        return f"{what}Nothing was run. Next: give {magic} a cell of its own"
    shown = f"\n{_BETWEEN}\n".join(cells)
    these = "this cell" if len(cells) == 1 else f"these {len(cells)} cells"
    return f"{what}Nothing was run. Next: run {these} instead:\n\n{shown}"


def _inside(magic: str, statement: ast.stmt) -> str:
    name = type(statement).__name__.removeprefix("Async")
    words = {"For": "for", "While": "while", "If": "if", "With": "with", "Try": "try"}
    word = {**words, "FunctionDef": "def", "ClassDef": "class"}.get(name, "")
    where = f"inside a `{word}`" if word else "inside a statement"
    return (
        f"{magic} works in the notebook's process, and stands {where} that the ranks would run. "
        f"Nothing was run. Next: give {magic} a cell of its own, before or after this one"
    )


def _cells(
    code: str,
    statements: Sequence[ast.stmt],
    is_for_notebook: Callable[[ast.stmt], bool],
    ranks_line: str,
    notebook_line: str,
) -> list[str] | None:
    """The text of each cell; None: the lines of the statements are not known.

    A statement that reads what a line for the notebook has bound goes to the notebook, too.
    """
    lines = code.split("\n")
    above = next((number for number, line in enumerate(lines) if line.strip()), 0)
    parts: list[tuple[bool, bool, list[str]]] = []  # for the notebook, magics only, lines
    bound: set[str] = set()
    end = 0
    for statement in statements:
        is_magic = is_for_notebook(statement)
        last = (statement.end_lineno or statement.lineno) + above
        if last <= end or (is_magic and "%" not in lines[min(last, len(lines)) - 1]):
            return None  # two statements in a line, or a magic that goes over several
        is_here = is_magic or not bound.isdisjoint(_names(statement, ast.Load))
        stored = _names(statement, ast.Store)
        bound = bound | stored if is_here else bound - stored
        text = lines[end:last]
        if parts and parts[-1][0] == is_here:
            _, was_magic, before = parts.pop()
            parts.append((is_here, was_magic and is_magic, before + text))
        else:
            parts.append((is_here, is_magic, text))
        end = last
    return [
        "\n".join(filter(None, (_first(*part[:2], ranks_line, notebook_line), _trimmed(part[2]))))
        for part in parts
    ]


def _first(is_here: bool, is_magic: bool, ranks_line: str, notebook_line: str) -> str:
    if not is_here:
        return ranks_line
    return "" if is_magic else notebook_line


def _trimmed(lines: list[str]) -> str:
    return "\n".join(lines).strip("\n")


def _names(statement: ast.stmt, context: type[ast.expr_context]) -> set[str]:
    return {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, context)
    }
