"""What is shown of a background cell that has failed, where nobody has waited for it yet.

Runs in: the notebook's process. Pure.
"""

from nbddp.errors import CellError, CellInterruptedError
from nbddp.notebook.folded import PRE_STYLE, details, pre, without_codes
from nbddp.notebook.tables import clean, escape, preformatted

#: Shown open; a longer text is folded below its headline.
_MAX_OPEN = 4
_RED = "#d1495b"


def bundle(state: str, error: BaseException | None, *, is_expected: bool = False) -> dict[str, str]:
    """The state of a cell, and below it what made it fail.

    Args:
        state: a line.
        error: as `CellHandle.wait` raises it; None: there is none.
        is_expected: the user has ended the cell, and `state` says so.
    """
    state = clean(state)
    if error is None:
        return {"text/plain": state}
    lines = _lines(error)
    if isinstance(error, CellInterruptedError) or (is_expected and len(lines) == 1):
        where = details("where the ranks were", pre(lines)) if len(lines) > 1 else ""
        return {"text/plain": state, "text/html": pre([state]) + where}
    headline = _headline(lines, type(error).__name__)
    told = lines if len(lines) <= _MAX_OPEN else [headline]
    html = pre([state]) + _errors(told, type(error).__name__)
    if told is not lines:
        html += details("the whole error", pre(lines))
    return {"text/plain": "\n".join([state, *lines]), "text/html": html}


def _headline(lines: list[str], name: str) -> str:
    """It stands below the tracebacks, or above the story of a rank that exited."""
    return next((line for line in reversed(lines) if line.startswith(name)), lines[-1])


def _errors(lines: list[str], name: str) -> str:
    """As HTML; the name of the error is what is seen first."""
    bold = f'<b style="color:{_RED}">{name}</b>'
    shown = [
        f"{bold}{escape(line[len(name) :])}" if line.startswith(name) else escape(line)
        for line in lines
    ]
    return preformatted("\n".join(shown), PRE_STYLE)


def _lines(error: BaseException) -> list[str]:
    """As a cell in the foreground shows it."""
    if isinstance(error, CellError):
        text = "\n".join(error._render_traceback_())
    else:
        text = f"{type(error).__name__}: {error}"
    return clean(without_codes(text)).strip("\n").split("\n")
