"""Text in letters that the font of the pictures has: ASCII and a few more.

A font draws a box for what it lacks, which tells nobody anything. Accents are left out, signs and
Greek letters are spelled, as one does in source code, and of all the rest a ``?`` is left. The
text form beside each picture has the letters themselves.

Runs in: the notebook's process. Pure.
"""

import unicodedata

#: What the font has beside ASCII; `tests/unit/test_picture.py` looks whether it does.
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
    "µ": "u",  # of units; the Greek letter is another one
    "∞": "inf",
    "∇": "nabla",
    "∂": "d",
    "∑": "sum",
    "√": "sqrt",
}
#: Accents and joiners; dashes; spaces and control characters.
_BY_CATEGORY = {"Mn": "", "Me": "", "Cf": "", "Pd": "-", "Zs": " ", "Cc": " "}


def drawable(text: str) -> str:
    """The text as a picture shows it.

    >>> drawable("∇θ → naïve, 梯度")
    'nablatheta -> naive, ??'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelled(letter) for letter in text)


def _spelled(letter: str) -> str:
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
