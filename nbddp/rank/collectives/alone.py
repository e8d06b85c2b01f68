"""Refuses what only one rank would call: a collective in a callback of a widget.

Runs in: the rank process, the thread of the callback. A callback runs on the rank whose widget was
touched. While a cell runs on all ranks, the others may take part, and the diagnosis sees it if they
do not. Between cells nobody would.
"""

from collections.abc import Iterable

from nbddp.errors import CollectiveRefusedError
from nbddp.rank.collectives.recorder import Recorder
from nbddp.wire.ranks import RankSet


def refuse(recorder: Recorder, op: str, members: Iterable[int]) -> None:
    """Raise if this is a callback between cells, and members have to take part that do not run it.

    To be called before anything is recorded: the others have not called it, and need not know.

    Raises:
        CollectiveRefusedError: it would wait for ever.
    """
    if recorder.run_id or recorder.is_child or not recorder.callbacks.is_here:
        return
    others = RankSet.of(rank for rank in members if rank != recorder.rank)
    if others:
        raise CollectiveRefusedError(
            f"rank {recorder.rank} called {op} in a widget's callback, while no cell runs\n"
            "  a callback runs on the one rank whose widget was touched: "
            f"{others.describe()} would never make this call\n"
            "  nothing was sent; every variable is kept\n"
            f"  next: set a variable in the callback, and call {op} in a %%ddp cell that all ranks "
            "run"
        )
