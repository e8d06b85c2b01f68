"""The lines of ``%ddp vars`` and ``%ddp diff``: names and expressions in, checked ones out.

Runs in: the notebook's process. Pure.
"""

import ast
import re

from nbddp.errors import BadOptionError

_RANKS = r"(?:-r|--ranks)(?:\s+|=)"
#: Ranks in front of the rest, or behind it.
_LINE = re.compile(
    rf"(?:{_RANKS}(?P<first>\S+)(?:\s+|$))?(?P<what>.*?)(?:(?:\s+|^){_RANKS}(?P<last>\S+))?"
)
#: As people write it to explain a line.
_COMMENT = re.compile(r"(?:^|\s)#\s")


def parse_vars(line: str) -> tuple[list[str], str | None]:
    """Read what is behind ``vars``: names, and which ranks. Raises `BadOptionError`."""
    text, ranks = _split("vars", line)
    return text.split(), ranks


def parse_diff(line: str) -> tuple[list[str], str | None]:
    """Read what is behind ``diff``: expressions, whose quotes are Python's, and which ranks.

    The line is one expression if it can be, else each word is one.

    Raises:
        BadOptionError: it is neither.
    """
    text, ranks = _split("diff", line)
    if not text:
        raise BadOptionError("%ddp diff: what? Next: %ddp diff EXPRESSION [-r RANKS]")
    pieces = [text] if _parsed(text) is not None else text.split()
    for piece in pieces:
        if (quoted := _quoted(piece)) is not None:
            raise BadOptionError(
                f"%ddp diff: {piece} is a text, which is the same everywhere. "
                f"Next: %ddp diff {quoted or 'model'}, without the quotes"
            )
        if _parsed(piece) is None:
            raise BadOptionError(
                f"%ddp diff: {piece!r} is not an expression. "
                "Next: %ddp diff model, or %ddp diff model.state_dict() [-r RANKS]"
            )
    return pieces, ranks


def _split(verb: str, line: str) -> tuple[str, str | None]:
    found = _LINE.fullmatch(_COMMENT.split(line, maxsplit=1)[0].strip())
    lacks = found is not None and found["what"].split()[-1:] in (["-r"], ["--ranks"])
    if found is None or (found["first"] and found["last"]) or lacks:
        what = "[NAME ...]" if verb == "vars" else "EXPRESSION"
        raise BadOptionError(
            f"%ddp {verb}: -r stands there twice, or without ranks. "
            f"Next: %ddp {verb} {what} [-r RANKS]"
        )
    return found["what"], found["first"] or found["last"]


def _quoted(text: str) -> str | None:
    """What is inside of the quotes; None: it is not in quotes."""
    found = _parsed(text)
    if isinstance(found, ast.Constant) and isinstance(found.value, str):
        return found.value.strip()
    return None


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, "<diff>", "eval").body
    except (SyntaxError, ValueError):
        return None
