"""Hooks in IPython: hints on those that raise in every cell, and interrupts inside of them.

Runs in: the rank process, main thread.
"""

from types import FrameType, TracebackType

_EVENTS = "/IPython/core/events.py"
_TRANSFORMERS = "/IPython/core/inputtransformer2.py"
_IPYTHON = "/IPython/"


def hint(error: BaseException | None) -> str:
    """What to do if ``error`` comes from such a hook; empty if it does not."""
    if isinstance(error, KeyboardInterrupt):
        return ""  # the user has stopped the cell in such a hook
    hook = ""
    step = error.__traceback__ if error is not None else None
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if _IPYTHON not in file and hook:
            return hook
        hook = _hook(step, file) or hook
        step = step.tb_next
    return ""


def _hook(step: TracebackType, file: str) -> str:
    if file.endswith(_TRANSFORMERS):
        return (
            "Raised by a transformer of the input, not by the cell: no cell can run, not even one "
            "that takes it away. Next: %ddp restart -r RANKS"
        )
    if file.endswith(_EVENTS) and step.tb_frame.f_code.co_name == "trigger":
        event = step.tb_frame.f_locals.get("event", "")
        return (
            f"Raised by a hook of the shell ({event}), not by the cell, and it will be again. "
            f"Next: get_ipython().events.callbacks[{event!r}].clear() in a cell, "
            "or %ddp restart -r RANKS"
        )
    return ""


def callback_before_cell(frame: FrameType | None) -> object:
    """The callback that IPython runs before the cell's own code, if ``frame`` is inside; or None.

    What it raises goes no further, an interrupt neither: IPython prints it and runs the cell.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_name == "trigger" and code.co_filename.endswith(_EVENTS):
            is_before = str(frame.f_locals.get("event", "")).startswith("pre_")
            return frame.f_locals.get("func", _NOT_BEGUN) if is_before else None
        frame = frame.f_back
    return None


def is_of_ipython(callback: object) -> bool:
    """Whether IPython itself has registered it: an interrupt there is none of the user's code."""
    module = getattr(callback, "__module__", None) or ""
    return callback is _NOT_BEGUN or module.startswith("IPython.")


_NOT_BEGUN = object()
