"""A cell does not end before what a widget's callback has called in it.

Runs in: the rank process, main thread, at the end of a cell. A callback that began while the cell
ran has a thread of its own. What it calls then is a call of the cell's, which the others may take
part in; after the end nobody would, and no diagnosis looks.
"""

import threading
import time

from nbddp.rank.collectives.recorder import Recorder

_POLL_S = 0.01


def wait(recorder: Recorder) -> None:
    """Wait as long as a callback does, for the same operation.

    What the callback calls later is refused, since the cell has ended.
    """
    thread = threading.get_ident()
    slot = None
    try:
        while awaited := _awaited(recorder, thread):
            # Whoever looks at this rank sees what it waits for: the cell is freed like any other.
            slot = recorder.writer.begin_wait(thread, *awaited)
            while _awaited(recorder, thread) == awaited:
                time.sleep(_POLL_S)
    finally:
        if slot is not None:
            recorder.writer.end_wait(slot)


def _awaited(recorder: Recorder, own: int) -> tuple[int, int] | None:
    """The record for which the callback waits, and since when; None: it does not, or has ended."""
    callback = recorder.callbacks.thread
    if callback in (0, own):
        return None
    waits = recorder.waits()
    return next(((record, since) for thread, record, since in waits if thread == callback), None)
