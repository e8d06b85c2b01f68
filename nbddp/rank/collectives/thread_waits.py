"""The thread of this process that another thread or an event loop waits for, and is blocked by.

Runs in: the rank process, I/O thread. Only waits without a timeout count, because others end by
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
#: Timeouts of `Thread.join`, and of the functions that it calls, that mean none.
_NO_TIMEOUT = (None, -1)


def awaited_thread(ident: int, frames: Mapping[int, types.FrameType]) -> int | None:
    """Return the thread at the end of the chain of waits; None: this one waits for no thread."""
    seen = {ident}
    last: int | None = None
    while True:
        frame = frames.get(ident if last is None else last)
        next_ident = _awaited_by(frame, frames) if frame is not None else None
        if next_ident is None:
            return last
        if next_ident in seen:
            return None
        seen.add(next_ident)
        last = next_ident


def _awaited_by(frame: types.FrameType, frames: Mapping[int, types.FrameType]) -> int | None:
    """Return the thread that a ``thread.join()``, ``future.result()`` or ``await`` waits for."""
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
    if code.co_name != "wait" or caller is None or not _is_function(caller, _FUTURES, "result"):
        return None
    if caller.f_locals.get("timeout") is not None:
        return None
    return _worker_of(caller.f_locals.get("self"), frames)


def _worker_of(future: object, frames: Mapping[int, types.FrameType]) -> int | None:
    """Return the thread that works on a future; None: no thread has begun it."""
    for ident, innermost in frames.items():
        frame: types.FrameType | None = innermost
        while frame is not None:
            if _is_function(frame, executors.__file__, "run"):
                item = frame.f_locals.get("self")
                if getattr(item, "future", sys) is future:
                    return ident
            frame = frame.f_back
    return None


def _is_function(frame: types.FrameType, file: str, name: str) -> bool:
    return frame.f_code.co_name == name and frame.f_code.co_filename == file


# --- awaits --------------------------------------------------------------------------------------


def awaited_future(frame: types.FrameType) -> Future[Any] | None:
    """Return the future that an event loop waits for, in whose ``select`` this frame is.

    None: the loop may do something else.
    """
    code, caller = frame.f_code, frame.f_back
    if code.co_name != "select" or code.co_filename != selectors.__file__ or caller is None:
        return None
    code = caller.f_code
    if code.co_name != "_run_once" or code.co_filename != base_events.__file__:
        return None
    loop_locals: dict[str, Any] = caller.f_locals
    loop: Any = loop_locals.get("self")
    if loop_locals.get("timeout", 0) is not None or len(loop._selector.get_map()) != 1:
        return None
    try:
        tasks = asyncio.all_tasks(loop)
    except RuntimeError:
        return None  # the loop has gone on meanwhile
    first: Future[Any] | None = None
    for task in tasks:
        futures = _work_of(getattr(task, "_fut_waiter", None), tasks)
        if futures is None:
            return None
        first = first or next(iter(futures), None)
    return first


def _work_of(future: object, tasks: set[asyncio.Task[Any]]) -> list[Future[Any]] | None:
    """Return the futures of executors behind ``future``; None: not known.

    The list is empty for another task, which is examined by itself.
    """
    if future in tasks:
        return []
    children = getattr(future, "_children", None)  # of `asyncio.gather`
    if children is not None:
        parts = [_work_of(child, tasks) for child in children if not child.done()]
        known = [part for part in parts if part is not None]
        is_known = len(known) == len(parts) > 0
        return [source for part in known for source in part] if is_known else None
    # `asyncio.wrap_future` connects the two by this closure.
    sources = [
        inspect.getclosurevars(callback).nonlocals.get("source")
        for callback, *_ in getattr(future, "_callbacks", None) or ()
        if inspect.isfunction(callback)
    ]
    return [source for source in sources if isinstance(source, Future)] or None
