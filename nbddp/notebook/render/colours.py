"""A colour for each rank, the same in every view.

Runs in: the notebook's process. Pure.

The colours have one medium lightness: they can be read on a white and on a black page. There are
eight, so ranks 0 and 8 share one, and some look alike to colour-blind readers: a colour only helps
the eye to find a rank, whose number is always there too. Text streams have no colours: logs,
`%%capture` and tests read them.
"""

from nbddp.wire.rank_set import RankSet

RANK_COLOURS = (
    "#2f7fc1",
    "#c2651a",
    "#1a8a6d",
    "#b3589a",
    "#8a7a10",
    "#6f6fd0",
    "#d1495b",
    "#4d8a2f",
)


def colour_of(ranks: RankSet) -> str:
    """The colour of a single rank; empty for several ranks, which have the colour of the text."""
    if len(ranks) != 1:
        return ""
    return RANK_COLOURS[ranks.ranks[0] % len(RANK_COLOURS)]
