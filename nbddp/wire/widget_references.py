"""References between the states of widgets.

Runs in: the rank processes and the notebook's process. Pure.
"""

from collections.abc import Mapping
from typing import Any

#: MIME type of a widget that a rank shows: it has the id of the model.
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
#: A text with this prefix and the id of a model stands for it in the state of another one.
REFERENCE = "IPY_MODEL_"


def refers_to_widgets(value: Any) -> bool:
    """Return whether a part of a state refers to a widget, as a child or as a view in an output."""
    if isinstance(value, str):
        return value.startswith(REFERENCE)
    if isinstance(value, Mapping):
        return WIDGET_MIME in value or any(map(refers_to_widgets, value.values()))
    return isinstance(value, list | tuple) and any(map(refers_to_widgets, value))
