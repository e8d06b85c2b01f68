"""Hooks of the user in IPython: advice on hooks that raise in every cell, and interrupts in them.

Runs in: the rank process, main thread.
"""

from types import FrameType, TracebackType

_EVENTS = "/IPython/core/events.py"
_TRANSFORMERS = "/IPython/core/inputtransformer2.py"
_IPYTHON = "/IPython/"


def hint(error: BaseException | None) -> str:
    """Return advice if ``error`` comes from such a hook; empty: it does not."""
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
            "that removes it. Next: %ddp restart -r RANKS"
        )
    if file.endswith(_EVENTS) and step.tb_frame.f_code.co_name == "trigger":
        event = step.tb_frame.f_locals.get("event", "")
        return (
            f"Raised by a hook of the shell ({event}), not by the cell; it runs in every cell. "
            f"Next: get_ipython().events.callbacks[{event!r}].clear() in a cell, "
            "or %ddp restart -r RANKS"
        )
    return ""


def callback_before_cell(frame: FrameType | None) -> object:
    """Return the callback that IPython runs before a cell's code and ``frame`` is in; None: none.

    An exception of the callback, or an interrupt in it, does not end the cell: IPython prints it
    and runs the cell.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_name == "trigger" and code.co_filename.endswith(_EVENTS):
            is_before = str(frame.f_locals.get("event", "")).startswith("pre_")
            return frame.f_locals.get("func", _NOT_CALLED) if is_before else None
        frame = frame.f_back
    return None


def is_ipython_callback(callback: object) -> bool:
    """Return whether IPython itself has registered the callback: then it is no user code."""
    module = getattr(callback, "__module__", None) or ""
    return callback is _NOT_CALLED or module.startswith("IPython.")


_NOT_CALLED = object()
