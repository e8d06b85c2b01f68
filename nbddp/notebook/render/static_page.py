"""The part of a display that is seen without JavaScript: in a saved page, a terminal, on paper.

Runs in: the notebook's process. Pure.
"""

import re
from collections.abc import Mapping
from typing import Any

#: HTML that shows nothing by itself: plotly sends its library so, before its first figure.
_UNSEEN = re.compile(
    r"(?:\s+|<!--.*?-->|<(?P<tag>script|style)\b.*?</(?P=tag)\s*>)*", re.DOTALL | re.IGNORECASE
)
_SCRIPT = re.compile(r"<script\b", re.IGNORECASE)
_STATIC = ("text/", "image/", "application/pdf")
#: The library of a format: ``plotly`` of ``application/vnd.plotly.v1+json``.
_LIBRARY = re.compile(r"application/vnd\.(\w+)")


def is_unseen(data: Mapping[str, Any]) -> bool:
    """Whether a display only runs or styles something, so that a label would stand alone."""
    seen = [mime for mime in data if mime not in ("text/plain", "application/javascript")]
    if seen == ["text/html"]:
        return _UNSEEN.fullmatch(str(data["text/html"])) is not None
    return not seen and "application/javascript" in data


def with_note(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a bundle that has a text if all else in it needs JavaScript.

    >>> with_note({"application/vnd.plotly.v1+json": {}})["text/plain"]
    'plotly figure: needs JavaScript'
    """
    static = [mime for mime in data if mime.startswith(_STATIC)]
    is_script = static == ["text/html"] and _SCRIPT.search(str(data["text/html"]))
    if is_unseen(data) or (static and not is_script):
        return dict(data)
    library = next((match[1] for mime in data if (match := _LIBRARY.match(mime))), "")
    what = f"{library} figure" if library else "output"
    return {**data, "text/plain": f"{what}: needs JavaScript"}
