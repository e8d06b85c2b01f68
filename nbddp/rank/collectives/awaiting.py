"""For which thread of this process an event loop waits, when it can do nothing else.

Runs in: the rank process, I/O thread. A loop counts only if it has no timer, no socket but its own,
and if each of its tasks waits for another one or for what a thread of an executor does.
"""

import asyncio
import inspect
import selectors
import types
from asyncio import base_events
from concurrent.futures import Future
from typing import Any


def awaited_future(frame: types.FrameType) -> Future[Any] | None:
    """What the loop waits for whose ``select`` this frame is; None: it may do something else."""
    code, caller = frame.f_code, frame.f_back
    if code.co_name != "select" or code.co_filename != selectors.__file__ or caller is None:
        return None
    code = caller.f_code
    if code.co_name != "_run_once" or code.co_filename != base_events.__file__:
        return None
    found: dict[str, Any] = caller.f_locals
    loop: Any = found.get("self")
    if found.get("timeout", 0) is not None or len(loop._selector.get_map()) != 1:
        return None
    try:
        tasks = asyncio.all_tasks(loop)
    except RuntimeError:
        return None  # it has gone on meanwhile
    first: Future[Any] | None = None
    for task in tasks:
        waited = _work_of(getattr(task, "_fut_waiter", None), tasks)
        if waited is None:
            return None
        first = first or next(iter(waited), None)
    return first


def _work_of(future: object, tasks: set[asyncio.Task[Any]]) -> list[Future[Any]] | None:
    """What executors do for this; none for another task, which counts itself. None: not known."""
    if future in tasks:
        return []
    children = getattr(future, "_children", None)  # of `asyncio.gather`
    if children is not None:
        parts = [_work_of(child, tasks) for child in children if not child.done()]
        known = [part for part in parts if part is not None]
        is_known = len(known) == len(parts) > 0
        return [each for part in known for each in part] if is_known else None
    # As `asyncio.wrap_future` ties the two.
    sources = [
        inspect.getclosurevars(callback).nonlocals.get("source")
        for callback, *_ in getattr(future, "_callbacks", None) or ()
        if inspect.isfunction(callback)
    ]
    return [each for each in sources if isinstance(each, Future)] or None
