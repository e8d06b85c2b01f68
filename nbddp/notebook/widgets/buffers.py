"""The binary parts of widget states, such as the bytes of a picture, for a reloaded page.

Runs in: the notebook's process. Pure. As in the protocol of ipywidgets, a state comes without its
binary parts, and ``buffer_paths`` beside it has the place of each buffer.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nbddp.notebook.widgets.static_text import Model

#: Total size for all models; the least recently changed parts are dropped first.
KEPT_BYTES = 16_000_000


def update(model: Model, data: Mapping[str, Any], buffers: Sequence[Any]) -> None:
    """Update the binary parts of a model from a message that opens or changes it.

    Args:
        model: the model to update.
        data: data of the comm message, with ``state`` and ``buffer_paths``.
        buffers: buffers of the message.
    """
    paths = [tuple(path) for path in data.get("buffer_paths") or ()]
    changed = {path[0] for path in paths} | set(data.get("state") or {})
    kept = {path: part for path, part in model.binaries.items() if path[0] not in changed}
    model.binaries = {**kept, **dict(zip(paths, map(bytes, buffers), strict=False))}


def keep_within(models: Iterable[Model], newest: Model, limit_bytes: int = KEPT_BYTES) -> None:
    """Drop the binary parts of models until the rest is small enough.

    Args:
        models: all models, oldest first.
        newest: the model that is dropped last.
        limit_bytes: limit of the total size.
    """
    with_binaries = [model for model in models if model.binaries and model is not newest]
    total = sum(map(_nbytes, with_binaries)) + _nbytes(newest)
    for model in [*with_binaries, newest]:
        if total <= limit_bytes:
            break
        total -= _nbytes(model)
        model.binaries = {}


def paths_and_buffers(model: Model) -> tuple[list[list[Any]], list[bytes]]:
    """Return the paths of the binary parts in the state of a model, and their buffers."""
    return [list(path) for path in model.binaries], list(model.binaries.values())


def _nbytes(model: Model) -> int:
    return sum(map(len, model.binaries.values()))
