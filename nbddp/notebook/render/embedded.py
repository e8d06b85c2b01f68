"""A MIME bundle as HTML that can stand inside of other HTML.

Runs in: the notebook's process. Pure.
"""

import base64
import binascii
import re
import struct
from collections.abc import Mapping
from typing import Any

from nbddp.notebook.render.html import PRE_STYLE, escape, preformatted, without_codes

#: Pictures that every browser shows, as kernels send them: in base64.
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
#: Front ends format these themselves, with code that is not in the bundle.
_FORMATTED = ("text/markdown", "text/latex")
#: A document of its own: it would run or load again with every change beside it.
_ACTIVE = re.compile(r"<(?:script|iframe|object|embed)\b", re.IGNORECASE)
_PNG_HEAD = struct.Struct(">8x4x4sII")
_PNG_HEAD_CHARS = 32  # in base64


def is_embeddable(data: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Return whether `embedded` shows this bundle as a front end would."""
    if any(mime.startswith("application/") and mime != "application/pdf" for mime in data):
        return False
    if any(isinstance(about, dict) and about.get("isolated") for about in metadata.values()):
        return False
    html = data.get("text/html")
    if html is not None:
        return isinstance(html, str) and not _ACTIVE.search(html)
    if any(mime in data for mime in _FORMATTED):
        return False
    return any(
        isinstance(data.get(mime), str) for mime in ("image/svg+xml", *_PICTURES, "text/plain")
    )


def embedded(data: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    """Return an embeddable bundle as HTML.

    A picture has its size in its tag, so that nothing moves while a browser decodes it.
    """
    if "text/html" in data:
        return str(data["text/html"])
    plain = str(data.get("text/plain", ""))
    if "image/svg+xml" in data:
        svg = base64.b64encode(str(data["image/svg+xml"]).encode()).decode()
        return _picture("image/svg+xml", svg, plain, {})
    for mime in _PICTURES:
        if mime in data:
            encoded = str(data[mime]).replace("\n", "")
            about = metadata.get(mime)
            size = about if isinstance(about, dict) else _png_size(mime, encoded)
            return _picture(mime, encoded, plain, size)
    return preformatted(escape(without_codes(plain)), PRE_STYLE)


def _picture(mime: str, encoded: str, plain: str, size: Mapping[str, Any]) -> str:
    sides = "".join(
        f' {side}="{size[side]:.0f}"'
        for side in ("width", "height")
        if isinstance(size.get(side), int | float)
    )
    return (
        f'<img src="data:{mime};base64,{encoded}" alt="{escape(plain)}"{sides} '
        'style="max-width:100%;height:auto">'
    )


def _png_size(mime: str, encoded: str) -> dict[str, int]:
    """Return width and height in pixels; empty if the head is not that of a PNG file."""
    if mime != "image/png":
        return {}
    try:
        kind, width, height = _PNG_HEAD.unpack(base64.b64decode(encoded[:_PNG_HEAD_CHARS]))
    except (binascii.Error, struct.error):
        return {}
    return {"width": width, "height": height} if kind == b"IHDR" else {}
