"""Rejects a collective that only some members would call, and waits for those of callbacks.

Runs in: the rank process, the thread that calls. A callback of a widget runs on the rank whose
widget was touched: while a cell runs on all ranks, the others may take part, and the diagnosis sees
it if they do not; between cells nobody would. Tab and Shift-Tab ask one rank, `pull` those that the
user has chosen; what all members are asked for they may call together. A rank that has exited, and
is not replaced (``on_death=keep``), calls nothing any more.
"""

import threading
import time
from collections.abc import Iterable
from functools import partial

from nbddp.errors import CollectiveRefusedError
from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.wire.rank_set import RankSet


def end_groups_of_dead(recorder: Recorder, dead: Iterable[int]) -> None:
    """From now on, and until they are made again, groups with a member of ``dead`` refuse."""
    for book in recorder.books.values():
        gone = RankSet.of(set(dead).intersection(book.info.ranks))
        if gone:
            book.is_broken = True
            book.ended = partial(_without, gone)


def _without(gone: RankSet) -> CollectiveRefusedError:
    has, its, it, fresh = (
        ("has", "its", "it", "a fresh process")
        if len(gone) == 1
        else ("have", "their", "them", "fresh processes")
    )
    return CollectiveRefusedError(
        f"{gone.describe()} {has} exited, and no operation of a group with {it} can complete\n"
        "  nothing was sent; every variable is kept\n"
        f"  next: %ddp restart -r {gone} puts {fresh} in {its} place"
    )


def refuse_in_part(recorder: Recorder, op: str, callers: Iterable[int]) -> None:
    """Raise if the cell does not run on all of these ranks, which have to call ``op``.

    Torch names groups by counting: a rank that does not call it gives another name to the next
    group than the others, and waits for them for ever.

    Raises:
        CollectiveRefusedError: some would not call it.
    """
    here = recorder.cell_ranks
    others = RankSet.of(set(callers).difference(here)) if here else RankSet()
    if not others or recorder.is_child:
        return
    raise CollectiveRefusedError(
        f"rank {recorder.rank} called {op}, which all ranks of the default group have to call, "
        f"members or not; this cell runs on {RankSet.of(here).describe()} only\n"
        f"  {others.describe()} would count one group less, and every later group would have "
        "different names\n"
        "  nothing was sent; every variable is kept\n"
        f"  next: call {op} in a cell that all ranks run (%%ddp without -r), or with "
        "use_local_synchronization=True"
    )


def refuse(recorder: Recorder, op: str, members: Iterable[int]) -> None:
    """Raise if members have to take part that do not run the code which calls this.

    To be called before anything is recorded: the others have not called it, and need not know.

    Raises:
        CollectiveRefusedError: it would wait for ever.
    """
    if recorder.is_child:
        return
    question = recorder.callbacks.question
    if question is None and (recorder.run_id or not recorder.callbacks.is_here):
        return
    here = RankSet.of([recorder.rank]) if question is None else question.ranks
    others = RankSet.of(set(members).difference(here))
    if not others:
        return
    if question is None:
        raise CollectiveRefusedError(
            f"rank {recorder.rank} called {op} in a widget's callback, while no cell runs\n"
            "  a callback runs on the one rank whose widget was touched: "
            f"{others.describe()} would never make this call\n"
            "  nothing was sent; every variable is kept\n"
            f"  next: set a variable in the callback, and call {op} in a %%ddp cell that all ranks "
            "run"
        )
    if question.is_pull:
        raise CollectiveRefusedError(
            f"it calls {op}, which {others.describe()} would never call: only "
            f"{here.describe()} {here.verb('was', 'were')} asked; nothing was sent. "
            "Next: ask all ranks"
        )
    raise CollectiveRefusedError(
        f"rank {recorder.rank} called {op} for Tab or Shift-Tab, which ask one rank\n"
        f"  {others.describe()} would never make this call; nothing was sent"
    )


# --- callbacks that go on ------------------------------------------------------------------------


_POLL_S = 0.01


def wait_for_callbacks(recorder: Recorder) -> None:
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
