"""Widgets that live in ranks, shown in the notebook, and the panel of stepped cells.

Runs in: the notebook's process.

    rank --comm--> relay --> front end      (buffers: the binary parts of their states)
                     |
                     +--> page_reload       their states, for a reloaded page
                     +--> static_text       their text form, for pages without widgets

Code outside this package imports from here; only the text form of widgets is imported from
`nbddp.notebook.widgets.static_text`.
"""

from nbddp.notebook.widgets.relay import Relay
from nbddp.notebook.widgets.static_text import (
    WIDGET_ID_SUFFIX,
    display_id_of,
    without_widget,
)
from nbddp.notebook.widgets.step_panel import NoClicksError, StepPanel
from nbddp.wire.widget_references import WIDGET_MIME

__all__ = [
    "WIDGET_ID_SUFFIX",
    "WIDGET_MIME",
    "NoClicksError",
    "Relay",
    "StepPanel",
    "display_id_of",
    "without_widget",
]
