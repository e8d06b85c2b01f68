"""``nbddp.show``: sends a few numbers of a tensor, so that the notebook draws those of all ranks.

    nbddp.show(grad)                       # the tensor of every rank, side by side
    with nbddp.show(grad):                 # before and after
        dist.all_reduce(grad)

Runs in: the rank process, main thread, inside the user's cell. In any other process with torch,
such as a script, it prints the numbers.
"""

import ast
import linecache
import sys
import types
from typing import Any, Self

import msgspec
import torch
from IPython.core.getipython import get_ipython

from nbddp.errors import BadOptionError
from nbddp.rank.values import tensor_preview
from nbddp.wire.values import preview_text
from nbddp.wire.values.tensor_preview import MIME, ShowCall, Stage, TensorShown

_MAX_NAME = 40
#: Tensors of one list that are drawn.
_MAX_ITEMS = 16
_counts: dict[str, int] = {}
_counted_run: str | None = None


class Shown:
    """The result of `show`: in a ``with`` statement, it shows the tensors again after the block."""

    def __init__(self, tensors: list[torch.Tensor], names: list[str], title: str, key: str) -> None:
        self._tensors = tensors
        self._names = names
        self._title = title
        self._key = key
        self._open_before: set[int] = set()
        self._send("now")

    def __enter__(self) -> Self:
        self._open_before = set(_open_works())
        self._send("opened")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        if kind is None:
            self._send("after")

    def __repr__(self) -> str:
        return ""

    def _ipython_display_(self) -> None:
        """Show nothing: `show` has already shown the tensors."""

    def _still_open(self) -> list[str]:
        """Return the names of the block's unfinished operations, which may still write."""
        recorder = _recorder()
        records = [] if recorder is None else sorted(set(_open_works()) - self._open_before)
        operations = [recorder.operation(record) for record in records]
        return [operation.signature.op for operation in operations if operation is not None]

    def _send(self, stage: Stage) -> None:
        # Read before the numbers: operations that have ended by now are in them.
        still_open = self._still_open() if stage == "after" else []
        previews: list[TensorShown] = []
        if stage != "opened":
            previews = [
                tensor_preview.preview(tensor, name)
                for tensor, name in zip(self._tensors, self._names, strict=True)
            ]
        call = ShowCall(
            key=self._key, stage=stage, title=self._title, tensors=previews, open=still_open
        )
        shell = get_ipython()
        if shell is None or not hasattr(shell, "link"):
            if stage != "opened":
                print(_terminal_text(call))  # noqa: T201 - there is no notebook
            return
        text = preview_text.call_text(call) if previews else ""
        shell.display_pub.publish({MIME: msgspec.to_builtins(call), "text/plain": text})


def show(*values: Any, title: str | None = None, frame: types.FrameType) -> Shown:
    """See `nbddp.show`.

    Args:
        values: the tensors, and lists or tuples of tensors.
        title: shown above them.
        frame: frame of the caller.

    Raises:
        BadOptionError: there is no value, or one is neither a tensor nor has tensors.
    """
    if not values:
        raise BadOptionError("nbddp.show needs at least one tensor. Next: nbddp.show(tensor)")
    tensors, names, notes = [], [], [title] if title else []
    for value, name in zip(values, _names(frame, len(values)), strict=True):
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            names.append(name)
            continue
        items = list(value) if isinstance(value, list | tuple) else []
        if not items or not all(isinstance(item, torch.Tensor) for item in items):
            raise BadOptionError(
                f"nbddp.show shows tensors and lists of tensors, and got {_what(value)}. "
                "Next: torch.as_tensor(...) for numbers; %ddp vars or %ddp diff for other values"
            )
        if len(items) > _MAX_ITEMS:
            notes.append(f"the first {_MAX_ITEMS} of {len(items)} tensors")
        shown = items[:_MAX_ITEMS]
        tensors += shown
        names += [f"{name or title or ''}[{index}]" for index in range(len(shown))]
    return Shown(tensors, names, ", ".join(notes), _key(frame))


def _recorder() -> Any:
    """Return the recorder of this rank's groups; None: there are no groups, or plain ones."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return getattr(dist.group.WORLD, "recorder", None)


def _open_works() -> dict[int, Any]:
    """Return the asynchronous operations that have not ended, by record."""
    recorder = _recorder()
    if recorder is None:
        return {}
    recorder.sweep()
    return dict(recorder.open)


def _key(frame: types.FrameType) -> str:
    """Return the line of the call, and its number there in this cell: equal on all ranks."""
    global _counted_run  # noqa: PLW0603 - a rank runs one cell at a time
    run_id = getattr(get_ipython(), "run_id", None)
    if run_id != _counted_run:
        _counts.clear()
        _counted_run = run_id
    site = f"{frame.f_code.co_name}:{frame.f_lineno}:{frame.f_lasti}"
    _counts[site] = _counts.get(site, 0) + 1
    return f"{site}:{_counts[site]}"


def _names(frame: types.FrameType, count: int) -> list[str]:
    """Return the arguments as the user wrote them in the call."""
    try:
        call = ast.parse(_source(frame).strip(), mode="eval").body
    except (SyntaxError, ValueError, IndexError):
        return [""] * count
    if not isinstance(call, ast.Call) or len(call.args) != count:
        return [""] * count
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return [""] * count
    names = [ast.unparse(argument) for argument in call.args]
    return [name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 2]}.." for name in names]


def _source(frame: types.FrameType) -> str:
    """Return the source of the call that ``frame`` executes."""
    positions = list(frame.f_code.co_positions())
    first, last, start, end = positions[frame.f_lasti // 2]
    if first is None or last is None or start is None or end is None:
        return ""
    file = frame.f_code.co_filename
    lines = [linecache.getline(file, number).encode() for number in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return b"".join(lines).decode(errors="replace")


def _terminal_text(call: ShowCall) -> str:
    """Return the text in a process outside a pool, for example one started by torchrun."""
    dist = sys.modules.get("torch.distributed")
    label = ""
    if dist is not None and dist.is_available() and dist.is_initialized():
        label = f"rank {dist.get_rank()}: "
    after = "after: " if call.stage == "after" else ""
    return label + after + preview_text.call_text(call)


def _what(value: object) -> str:
    """``a list of int``."""
    noun = type(value).__name__
    article = "an" if noun[:1].lower() in "aeiou" else "a"
    if not isinstance(value, list | tuple):
        return f"{article} {noun}"
    kinds = dict.fromkeys(type(item).__name__ for item in value)
    return f"{article} {noun} of {' and '.join(kinds)}" if kinds else f"an empty {noun}"
