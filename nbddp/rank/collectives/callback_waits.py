"""Waits at the end of a cell for the collective of a callback that outlives the cell.

Runs in: the rank process, main thread. While a cell keeps that thread, a callback of a
widget runs on the thread ``nbddp-comms``.
"""

import threading
import time

from nbddp.rank.collectives.recording.recorder import Recorder

_POLL_S = 0.01


def wait_for_callbacks(recorder: Recorder) -> None:
    """Wait for the operation that a callback waits for, as long as the callback does.

    Later calls of the callback are refused, because the cell has ended.
    """
    thread = threading.get_ident()
    slot = None
    try:
        while awaited := _awaited_record(recorder, thread):
            # The wait is recorded, so that the diagnosis sees it, and it can be aborted.
            slot = recorder.writer.begin_wait(thread, *awaited)
            while _awaited_record(recorder, thread) == awaited:
                time.sleep(_POLL_S)
    finally:
        if slot is not None:
            recorder.writer.end_wait(slot)


def _awaited_record(recorder: Recorder, own: int) -> tuple[int, int] | None:
    """Return the record for which the callback waits, and its start; None: it does not wait."""
    callback = recorder.callbacks.thread
    if callback in (0, own):
        return None
    waits = recorder.waits()
    return next(((record, since) for thread, record, since in waits if thread == callback), None)
