"""Texts as HTML, in one line or cut to a length, and numbers with units.

Runs in: the notebook's process. Pure.

The HTML uses only tags and styles that an untrusted notebook lets through: inline styles from
JupyterLab's list (no variables, no ``ch``, no ``currentColor``). It fixes no colour of text or
page, so that it is readable in light and dark themes, and without any style at all, as on GitHub.
"""

import html
import re
from collections.abc import Iterable, Sequence

#: Width of texts, in characters of a terminal.
WIDTH = 100
#: Style of borders: a grey that shows on white and on black.
FAINT_LINE = "1px solid rgba(128,128,128,0.35)"
#: Style of what is beside the point.
FAINT = "opacity:0.7"
_BLANK_LINE = re.compile(r"^([^\S\n]*)\n", re.MULTILINE)
_NUMBERS = re.compile(r"\d+(?:[-,]\d+)*")
_MAX_NUMBERS = 40  #: characters of those of one place
#: Behind a comma, a dot that is in no number, or a bracket, except before another sign.
_BREAKS = re.compile(r"(?<=,)(?=\S)|(?<=[.(\[{)\]}])(?=[\w\"'(\[{*-])(?<!\.(?=\d))")


def escape(text: str) -> str:
    """Escape a text for HTML; a character that does not print becomes a space."""
    return html.escape(clean(text))


def clean(text: str) -> str:
    """Replace control characters: a source line must not move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text)


def preformatted(text: str, style: str) -> str:
    """A ``<pre>`` of HTML whose lines also survive Markdown.

    Markdown ends an HTML block at a blank line and reads the text below as Markdown: the output of
    a cell would become headings and lists. So these line ends are written as entities.

    Args:
        text: HTML.
        style: inline CSS.
    """
    first = "\n" if text.startswith("\n") else ""  # the first line end of a <pre> does not count
    text = _BLANK_LINE.sub(r"\1&#10;", text)
    return f'<pre style="{style}">{first}{text}</pre>'


def one_line(text: str) -> str:
    """The text in one line, without control characters."""
    return " ".join(clean(text).split())


def without_numbers(text: str) -> str:
    """Replace numbers: texts that differ in numbers only become equal, ``send to rank …``."""
    return _NUMBERS.sub("…", text)


def with_all_numbers(texts: Sequence[str]) -> str:
    """One text for texts that differ in numbers only, with the first numbers of each place.

    >>> with_all_numbers(["recv from rank 1", "recv from rank 0", "recv from rank 3"])
    'recv from rank 1,0,3'
    """
    places = zip(*map(_NUMBERS.findall, texts), strict=True)
    lists = (",".join(dict.fromkeys(place)) for place in places)
    return _NUMBERS.sub(lambda _: _first_numbers(next(lists)), texts[0])


def _first_numbers(numbers: str) -> str:
    if len(numbers) <= _MAX_NUMBERS:
        return numbers
    return f"{numbers[: numbers.rindex(',', 0, _MAX_NUMBERS)]},…"


def breakable(text: str, limit: int) -> str:
    """Escape source code or a list; beyond ``limit`` characters its lines also break in words.

    They do so behind a comma, a dot or a bracket, never within a name.
    """
    return "<wbr>".join(map(escape, _BREAKS.split(text) if len(text) > limit else [text]))


def shorten(text: str, limit: int) -> str:
    """Cut the text at ``limit`` characters; an ellipsis marks the cut."""
    return text if len(text) <= limit else text[: max(1, limit - 1)].rstrip() + "…"


def shorten_inside(text: str, limit: int) -> str:
    """Cut the text in the middle: the end of a path says more than its beginning."""
    if len(text) <= limit:
        return text
    head = max(0, limit - 1) // 3
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def duration(ns: float) -> str:
    """``0.2 ms``, ``31 ms``, ``1.3 s``, ``2:05 min``."""
    if ns < 995_000:  # 0.99 ms
        return f"{ns / 1e6:.2f} ms" if ns < 95_000 else f"{ns / 1e6:.1f} ms"
    if ns < 9_950_000:
        return f"{ns / 1e6:.1f} ms"
    if ns < 999_500_000:
        return f"{ns / 1e6:.0f} ms"
    seconds = ns / 1e9
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


def size(nbytes: float) -> str:
    """``512 B``, ``4.2 MB``: powers of 1000, as for network links."""
    if nbytes < 1000:
        return f"{nbytes:.0f} B"
    value = nbytes / 1000
    units = ["kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        del units[0]
    return f"{value:.1f} {units[0]}" if value < 9.95 else f"{value:.0f} {units[0]}"


def words(parts: Iterable[str]) -> str:
    """``a, b and c``."""
    *front, last = parts
    return f"{', '.join(front)} and {last}" if front else last


#: Style of printed text. JupyterLab lets all of it through in untrusted notebooks.
PRE_STYLE = (
    "margin:0;padding:0 0 0 8px;border:none;background:none;white-space:pre-wrap;line-height:1.3;"
    "font-family:monospace;font-size:13px"
)


SUMMARY_STYLE = "cursor:pointer;opacity:0.7;padding-left:8px;font-size:13px"


_ANSI_CODES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")


def details(summary: str, body: str) -> str:
    """Folded HTML; ``summary`` is text."""
    return f'<details><summary style="{SUMMARY_STYLE}">{escape(summary)}</summary>{body}</details>'


def without_codes(text: str) -> str:
    """Remove colours and other codes of terminals."""
    return _ANSI_CODES.sub("", text) if "\x1b" in text else text
