"""Hooks of the user's in IPython that raise: every next cell will raise, too, so say what they are.

Runs in: the rank process, main thread.
"""

from types import TracebackType

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
