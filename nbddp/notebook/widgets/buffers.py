"""The binary parts of widgets' states, such as the bytes of a picture: for a page loaded again.

Runs in: the notebook's process. Pure. As in the protocol of ipywidgets, a state comes without them,
and beside it ``buffer_paths`` says where each of the buffers belongs.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nbddp.notebook.widgets.static_text import Model

#: Of all models together; what changed longest ago goes first.
KEPT_BYTES = 16_000_000


def note(model: Model, data: Mapping[str, Any], buffers: Sequence[Any]) -> None:
    """Read what a model says when it opens or changes.

    Args:
        model: whose binary parts change.
        data: of the comm message, with ``state`` and ``buffer_paths``.
        buffers: of the message.
    """
    paths = [tuple(path) for path in data.get("buffer_paths") or ()]
    fresh = {path[0] for path in paths} | set(data.get("state") or {})
    kept = {path: part for path, part in model.binaries.items() if path[0] not in fresh}
    model.binaries = {**kept, **dict(zip(paths, map(bytes, buffers), strict=False))}


def keep_within(models: Iterable[Model], newest: Model, limit_bytes: int = KEPT_BYTES) -> None:
    """Forget the binary parts of models until the rest is small enough.

    Args:
        models: all of them, oldest first.
        newest: goes last.
        limit_bytes: for all that is kept.
    """
    holding = [each for each in models if each.binaries and each is not newest]
    total = sum(map(_nbytes, holding)) + _nbytes(newest)
    for each in [*holding, newest]:
        if total <= limit_bytes:
            break
        total -= _nbytes(each)
        each.binaries = {}


def told(model: Model) -> tuple[list[list[Any]], list[bytes]]:
    """The paths in the state of a model, and the buffers that belong there."""
    return [list(path) for path in model.binaries], list(model.binaries.values())


def _nbytes(model: Model) -> int:
    return sum(map(len, model.binaries.values()))
