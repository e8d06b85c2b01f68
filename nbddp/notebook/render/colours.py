"""A colour for each rank, the same in every view.

Runs in: the notebook's process. Pure.

No fixed colour of a text has enough contrast (WCAG AA, 4.5 : 1) on a white page and on one that is
#111: the best grey reaches 4.3 on both. So text on a page keeps the colour of the page, and a tint
stands behind it. In pictures, white letters stand on the colours themselves. There are eight, so
ranks 0 and 8 share one, and some look alike to colour-blind readers: a colour only helps the eye to
find a rank, whose number is always there too. Text streams have no colours: logs, `%%capture` and
tests read them.
"""

from nbddp.wire.rank_set import RankSet

RANK_COLOURS = (
    "#2d79b8",
    "#b45e18",
    "#198469",
    "#ae5595",
    "#84750f",
    "#6b6bc8",
    "#ca4658",
    "#49822c",
)


#: Opacity of a colour behind text.
_TINT = 0.28


def colour_of(rank: int) -> str:
    """The colour of a rank, for pictures."""
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


def tint(colour: str) -> str:
    """A style for text: the colour behind it.

    >>> tint("#2d79b8")
    'background-color:rgba(45,121,184,0.28);border-radius:3px'
    """
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"background-color:rgba({red},{green},{blue},{_TINT});border-radius:3px"


def tint_of(ranks: RankSet) -> str:
    """The style of a single rank; empty for several ranks, which have no colour."""
    return tint(colour_of(ranks.ranks[0])) if len(ranks) == 1 else ""
