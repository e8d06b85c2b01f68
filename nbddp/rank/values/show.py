"""``nbddp.show``: sends a few numbers of a tensor, so that the notebook draws those of all ranks.

    nbddp.show(grad)                       # the tensor of every rank, side by side
    with nbddp.show(grad):                 # before and after
        dist.all_reduce(grad)

Runs in: the rank process, main thread, inside the user's cell; in any other process that has torch,
such as one of a script, it prints the numbers.
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
_counts: dict[str, int] = {}
_counted_run: str | None = None


class Shown:
    """What `show` gives: used in a ``with``, it shows the tensors again after the block."""

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
        """As the last expression of a cell it has been shown already."""

    def _still_open(self) -> list[str]:
        """Operations of the block whose end nobody has waited for: they may yet write."""
        recorder = _recorder()
        found = [] if recorder is None else sorted(set(_open_works()) - self._open_before)
        operations = [recorder.operation(record) for record in found]
        return [each.signature.op for each in operations if each is not None]

    def _send(self, stage: Stage) -> None:
        # Before the numbers are read: what is over by now is in them.
        still_open = self._still_open() if stage == "after" else []
        told: list[TensorShown] = []
        if stage != "opened":
            told = [
                tensor_preview.tell(tensor, name)
                for tensor, name in zip(self._tensors, self._names, strict=True)
            ]
        call = ShowCall(
            key=self._key, stage=stage, title=self._title, tensors=told, open=still_open
        )
        shell = get_ipython()
        if shell is None or not hasattr(shell, "link"):
            if stage != "opened":
                print(_outside(call))  # noqa: T201 - for the reader of a terminal
            return
        text = preview_text.call_text(call) if told else ""
        shell.display_pub.publish({MIME: msgspec.to_builtins(call), "text/plain": text})


def show(*values: Any, title: str | None = None, frame: types.FrameType) -> Shown:
    """See `nbddp.show`; ``frame`` is the caller's."""
    if not values:
        raise BadOptionError("nbddp.show: show what? Next: nbddp.show(tensor)")
    for value in values:
        if not isinstance(value, torch.Tensor):
            raise BadOptionError(
                f"nbddp.show shows tensors, and got {_a(type(value).__name__)}. "
                "Next: torch.as_tensor(...) for numbers; %ddp vars or %ddp diff for other values"
            )
    names = _names(frame, len(values))
    return Shown(list(values), names, title or "", _key(frame))


def _recorder() -> Any:
    """Of the groups of this rank; None: they are not traced, or there are none."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return getattr(dist.group.WORLD, "recorder", None)


def _open_works() -> dict[int, Any]:
    """By record: those that go on beside their caller."""
    recorder = _recorder()
    if recorder is None:
        return {}
    recorder.sweep()
    return dict(recorder.open)


def _key(frame: types.FrameType) -> str:
    """The line of the call, and how often it was there in this cell: the same on all ranks."""
    global _counted_run  # noqa: PLW0603 - a rank runs one cell at a time
    run_id = getattr(get_ipython(), "run_id", None)
    if run_id != _counted_run:
        _counts.clear()
        _counted_run = run_id
    site = f"{frame.f_code.co_name}:{frame.f_lineno}:{frame.f_lasti}"
    _counts[site] = _counts.get(site, 0) + 1
    return f"{site}:{_counts[site]}"


def _names(frame: types.FrameType, count: int) -> list[str]:
    """Return the arguments as they are written in the call."""
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
    """Return the text of the call that ``frame`` is in."""
    positions = list(frame.f_code.co_positions())
    first, last, start, end = positions[frame.f_lasti // 2]
    if first is None or last is None or start is None or end is None:
        return ""
    file = frame.f_code.co_filename
    lines = [linecache.getline(file, number).encode() for number in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return b"".join(lines).decode(errors="replace")


def _outside(call: ShowCall) -> str:
    """For a process that is no rank of a pool, such as one that torchrun has started."""
    dist = sys.modules.get("torch.distributed")
    label = ""
    if dist is not None and dist.is_available() and dist.is_initialized():
        label = f"rank {dist.get_rank()}: "
    after = "after: " if call.stage == "after" else ""
    return label + after + preview_text.call_text(call)


def _a(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
