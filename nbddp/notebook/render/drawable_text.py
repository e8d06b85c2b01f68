"""Text in letters that the font of the pictures has: ASCII and a few more.

A font draws a meaningless box for a letter that it lacks. So accents are left out, signs and Greek
letters are spelled as in source code, and every other letter becomes ``?``. The text form beside
each picture keeps the letters themselves.

Runs in: the notebook's process. Pure.
"""

import unicodedata

#: Characters of the font beside ASCII; `tests/unit/render/test_canvas.py` checks them.
BESIDE_ASCII = "…·±°\u2018\u2019\u201c\u201d"  # the last four: quotation marks

_SPELLED = {
    "→": "->",
    "←": "<-",
    "↔": "<->",
    "⇒": "=>",
    "\N{MULTIPLICATION SIGN}": "x",
    "\N{MINUS SIGN}": "-",
    "\N{FRACTION SLASH}": "/",  # in ½, taken apart
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "≈": "~",
    "µ": "u",  # the sign of units; the Greek letter is another character
    "∞": "inf",
    "∇": "nabla",
    "∂": "d",
    "∑": "sum",
    "√": "sqrt",
}
#: Accents and joiners; dashes; spaces and control characters.
_BY_CATEGORY = {"Mn": "", "Me": "", "Cf": "", "Pd": "-", "Zs": " ", "Cc": " "}


def drawable(text: str) -> str:
    """Return the text in letters of the font.

    >>> drawable("∇θ → naïve, 梯度")
    'nablatheta -> naive, ??'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spell(letter) for letter in text)


def _spell(letter: str) -> str:
    if " " <= letter <= "~" or letter in BESIDE_ASCII:
        return letter
    if letter in _SPELLED:
        return _SPELLED[letter]
    parts = unicodedata.normalize("NFKD", letter)
    if parts != letter:
        spelled = drawable(parts)
        return "?" if "?" in spelled else spelled
    kind, _, name = unicodedata.name(letter, "").partition(" LETTER ")
    if kind.startswith("GREEK") and name:
        return name.split()[-1].lower()
    return _BY_CATEGORY.get(unicodedata.category(letter), "?")
