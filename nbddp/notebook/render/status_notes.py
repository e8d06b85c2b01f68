"""Notes below the table of ``%ddp status``: the lost store, threads, fresh ranks.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Sequence

from nbddp.controller.state import Diagnosed, PoolSnapshot, RankInfo, RankState
from nbddp.wire.rank_set import ranks_by

_MAX_THREADS = 8


def store_notes(snapshot: PoolSnapshot) -> list[str]:
    """A line if the store is lost and there are ranks for which that matters."""
    is_any_alive = len(snapshot.in_state(RankState.EXITED)) < len(snapshot.ranks)
    text = (
        "the store process exited: existing groups still work, new ones cannot be made. "
        "Next: %ddp restart"
    )
    if 0 in snapshot.lost_agents:  # its ranks were in the groups
        text = (
            "the store was lost with node 0: the other ranks can form no group. Next: %ddp restart"
        )
    return [text] if snapshot.store_is_lost and is_any_alive else []


def left_notes(diagnosed: Diagnosed) -> list[str]:
    """A line for each thread of an ended cell that still runs."""
    ranks_by_text = ranks_by(
        (thread.left_text(), rank)
        for rank, look in diagnosed.looks.items()
        if look.activity == "idle"
        for thread in look.threads
        if thread.is_left
    )
    notes = [f"{ranks.describe()}: {text}" for text, ranks in ranks_by_text.items()]
    more = len(notes) - _MAX_THREADS
    return [*notes[:_MAX_THREADS], *([f"and {more} more threads"] if more > 0 else [])]


def fresh_notes(infos: Sequence[RankInfo]) -> list[str]:
    """A line for each reason why ranks are fresh, without their variables."""
    by_cause = ranks_by(
        (info.replaced, info.rank)
        for info in infos
        if info.replaced and info.state is not RankState.EXITED
    )
    notes = []
    for cause, ranks in by_cause.items():
        is_one = len(ranks) == 1
        why = "it was restarted" if is_one else "they were restarted"
        if cause == "exited":
            why = "it took the place of one" if is_one else "they took the places of others"
            why += " that exited"
        is_fresh = "is fresh" if is_one else "are fresh"
        notes.append(f"{ranks.describe()} {is_fresh}: {why}, without the variables")
    return notes
