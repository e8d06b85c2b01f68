"""Removes control codes from text of ranks: cursor moves, titles, links; only colours stay.

Runs in: every process. Pure.

A rank can print any text, and so can its exceptions. In a terminal such a text could clear the
screen, or write over the label that names the rank of a line.

Source: the classes of codes are those of ECMA-48 ("Control Functions for Coded Character Sets").
"""

import re

#: Control characters except tab and line end: C0, delete, C1.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ONLY_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_CODE = re.compile(
    r"(?P<colour>\x1b\[[0-9;:]*m)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # control sequences: cursor, erase, modes
    # Strings, to their end or the end of the line: titles, links, clipboards.
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x9c|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]?"
)
_ERASED = re.compile(r"[^\x08\n]?\x08")


def harmless(text: str) -> str:
    r"""Return ``text`` with line ends, tabs and colours; every other control is left out.

    A backspace removes the character before it, as in front ends of notebooks, but none before
    ``text``.

    >>> harmless("\x1b[2J\x1b[31mred\x1b[0m\x1b]0;title\x07")
    '\x1b[31mred\x1b[0m'
    """
    if _CONTROL.search(text) is None:
        return text
    if "\x1b" in text or not text.isascii():
        text = _CODE.sub(_colour, text)
    while "\x08" in text:
        text = _ERASED.sub("", text)
    if "\x1b" not in text:
        return _CONTROL.sub("", text)
    parts = _ONLY_COLOURS.split(text)
    colours = [*_ONLY_COLOURS.findall(text), ""]
    return "".join(
        _CONTROL.sub("", part) + colour for part, colour in zip(parts, colours, strict=True)
    )


def without_colours(text: str) -> str:
    r"""Return ``text`` without the colours that `harmless` leaves.

    >>> without_colours("\x1b[31mred\x1b[0m")
    'red'
    """
    return _ONLY_COLOURS.sub("", text)


def _colour(code: re.Match[str]) -> str:
    return code["colour"] or ""
