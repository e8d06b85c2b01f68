"""nbddp's own lines among the output of ranks, as MIME bundles.

Runs in: the notebook's process. No I/O.
"""

import html

from nbddp.notebook.output.sinks import QUIET_STYLE
from nbddp.notebook.render.colours import tint_of
from nbddp.notebook.render.html import PRE_STYLE, preformatted
from nbddp.wire.rank_set import RankSet


def quiet_bundle(text: str) -> dict[str, str]:
    """A line that is fainter than the output of ranks."""
    return {"text/plain": text, "text/html": preformatted(html.escape(text), QUIET_STYLE)}


def label_bundle(ranks: RankSet) -> dict[str, str]:
    """``[0-1]`` above a display of these ranks, with their colour if they are one."""
    label = f"[{ranks}]"
    tint = tint_of(ranks)
    style, text = QUIET_STYLE, html.escape(label)
    if tint:  # a fainter style would make the colour hard to see
        style, text = PRE_STYLE, f'<b style="{tint}">{text}</b>'
    return {"text/plain": label, "text/html": preformatted(text, style)}
