"""Suggested changes of code, applied."""

from collections.abc import Iterable

from nbddp.controller.diagnosis import ChangedLine


def apply_change(text: str, change: Iterable[ChangedLine]) -> str:
    """The code after a change.

    Args:
        text: the code before it.
        change: its lines; those without a number that are the same stand for lines left out.
    """
    lines = text.splitlines()
    change = list(change)
    removed = {each.line for each in change if each.change == "removed"}
    added: dict[int, list[str]] = {}  # by the line in front of which they stand
    at = next((each.line for each in change if each.line), 1)
    for each in change:
        if each.line:
            source = lines[each.line - 1].rstrip()
            assert each.source == source, (each, source)
            at = each.line + 1
        elif each.change == "added":
            added.setdefault(at, []).append(each.source)
    changed: list[str] = []
    for number, line in enumerate([*lines, ""], 1):
        changed += added.get(number, [])
        changed += [line] if number not in removed else []
    return "\n".join(changed)
