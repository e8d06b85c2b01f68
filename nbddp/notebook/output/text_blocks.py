"""Lines of one rank that belong together: a printed tensor, a table, a traceback.

Runs in: the notebook's main thread. Pure: no clock, no I/O.

The chunks in which text comes do not tell where one ``print`` ends: several are sent together. So
the text itself has to tell it. An indented line belongs to the line above it only by its looks: the
lines of such a paragraph fold one by one where ranks share the first of them and differ below it.
"""

from collections.abc import Sequence

#: A block is not longer: text that only looks like one must not keep the ranks apart.
_MAX_LINES = 200
_OPENING, _CLOSING = "([{", ")]}"
_MORE_FOLLOWS = (",", *_OPENING)
_TABLE_EDGES = ("|", "+", "│", "├", "└", "┌")


def continues(block: Sequence[str], line: str) -> bool:
    """Return whether a line belongs to the block of lines above it.

    >>> continues(["tensor([[0., 1.],"], "        [2., 3.]])")
    True
    >>> continues(["step 0"], "step 1")
    False
    >>> continues(["losses:"], "    0.25")
    True
    """
    if len(block) >= _MAX_LINES:
        return False
    last = next((text for text in reversed(block) if text.strip()), "")
    is_open = last.rstrip().endswith(_MORE_FOLLOWS) and _depth(block) > 0
    if is_open or (line[:1] in _CLOSING and line and _depth(block) > 0):
        return True
    if not line.strip() or not block[-1].strip():
        return False
    if line[0] in " \t":
        return True
    if block[0].startswith("Traceback (most recent call last)"):
        return block[-1][0] in " \t"
    # The rows of a table below a head that begins with the column of the index, as pandas prints.
    head = next((text for text in block if text.startswith(" ")), "")
    is_table = "  " in line and "  " in head.strip()
    return is_table or (line[0] in _TABLE_EDGES and block[-1][0] in _TABLE_EDGES)


def is_paragraph(block: Sequence[str]) -> bool:
    """Return whether only the indentation of its lines makes a block of them.

    >>> is_paragraph(["losses:", "    0.25"])
    True
    >>> is_paragraph(["tensor([[0., 1.],", "        [2., 3.]])"])
    False
    """
    head = block[0]
    is_printed_value = head[:1] in (" ", "\t") or head.startswith("Traceback") or _depth([head]) > 0
    return (
        len(block) > 1
        and not is_printed_value
        and all(line[:1] in (" ", "\t") for line in block[1:])
    )


def _depth(block: Sequence[str]) -> int:
    """Return the number of brackets that are still open."""
    return sum(sum(map(text.count, _OPENING)) - sum(map(text.count, _CLOSING)) for text in block)
