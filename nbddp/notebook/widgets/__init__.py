"""Widgets that live in ranks, shown in the notebook.

Runs in: the notebook's process.

    rank --comm--> relay --> front end      (buffers: the binary parts of their states)
                     |
                     +--> page_reload       their states, for a page that is loaded again
                     +--> static_text       what is left of them where no widget is shown

Code outside of this package imports from here; what a widget shows as text is the module
`nbddp.notebook.widgets.static_text`.
"""

from nbddp.notebook.widgets.relay import Relay
from nbddp.notebook.widgets.static_text import (
    WIDGET_ID_SUFFIX,
    WIDGET_MIME,
    display_id_of,
    without_widget,
)

__all__ = ["WIDGET_ID_SUFFIX", "WIDGET_MIME", "Relay", "display_id_of", "without_widget"]
