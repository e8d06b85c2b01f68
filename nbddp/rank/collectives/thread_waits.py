"""Which other thread of this process a thread or an event loop waits for: it is blocked as well.

Runs in: the rank process, I/O thread. Only waits without a time-out count: others end by
themselves.
"""

import asyncio
import inspect
import selectors
import sys
import threading
import types
from asyncio import base_events
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import thread as executors
from typing import Any

_FUTURES = executors.__file__.replace("thread.py", "_base.py")
#: As `Thread.join` and what it calls have it.
_NO_TIMEOUT = (None, -1)


def awaited_thread(ident: int, frames: Mapping[int, types.FrameType]) -> int | None:
    """The thread at the end of the chain of joins; None: this one waits for no thread."""
    seen = {ident}
    found: int | None = None
    while True:
        frame = frames.get(ident if found is None else found)
        following = _next(frame, frames) if frame is not None else None
        if following is None:
            return found
        if following in seen:
            return None
        seen.add(following)
        found = following


def _next(frame: types.FrameType, frames: Mapping[int, types.FrameType]) -> int | None:
    """In ``thread.join()``, ``future.result()`` or ``await``: who must end, or do the work."""
    code = frame.f_code
    if code.co_name == "select":
        future = awaited_future(frame)
        return None if future is None else _worker_of(future, frames)
    if code.co_filename != threading.__file__:
        return None
    if code.co_name in ("join", "_wait_for_tstate_lock"):
        thread = frame.f_locals.get("self")
        is_endless = frame.f_locals.get("timeout") in _NO_TIMEOUT
        return thread.ident if is_endless and isinstance(thread, threading.Thread) else None
    caller = frame.f_back
    if code.co_name != "wait" or caller is None or not _is(caller, _FUTURES, "result"):
        return None
    if caller.f_locals.get("timeout") is not None:
        return None
    return _worker_of(caller.f_locals.get("self"), frames)


def _worker_of(future: object, frames: Mapping[int, types.FrameType]) -> int | None:
    """The thread that works on a future; None: none has begun."""
    for ident, innermost in frames.items():
        frame: types.FrameType | None = innermost
        while frame is not None:
            if _is(frame, executors.__file__, "run"):
                item = frame.f_locals.get("self")
                if getattr(item, "future", sys) is future:
                    return ident
            frame = frame.f_back
    return None


def _is(frame: types.FrameType, file: str, name: str) -> bool:
    return frame.f_code.co_name == name and frame.f_code.co_filename == file


# --- awaits --------------------------------------------------------------------------------------


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
