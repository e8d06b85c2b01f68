"""``%ddp output``: shows again what a cell printed.

Runs in: the notebook's process, thread of the running cell.
"""

from IPython.core.interactiveshell import InteractiveShell

from nbddp.controller.state import RunOutcome
from nbddp.errors import BadOptionError
from nbddp.notebook import front_end_request, session
from nbddp.notebook.magics.chosen_ranks import chosen_ranks
from nbddp.notebook.output import MAX_CELLS, End, KeptOutput, Source
from nbddp.wire.flight_recorder import cell_name
from nbddp.wire.rank_set import Rank, RankSet


def show_output(shell: InteractiveShell, *, cell: int | None, ranks: str | None) -> None:
    """Show again what a ``%%ddp`` cell printed, and say how it ended.

    Args:
        shell: not used.
        cell: the number of the cell; None: the last one.
        ranks: only the output of these; None: of all that ran the cell.

    Raises:
        BadOptionError: the output of this cell is not kept, or none of these ranks ran it.
    """
    kept = _kept(cell)
    chosen = _chosen(kept, ranks)
    is_first = front_end_request.is_whole_line()
    for line in dropped_lines(kept, chosen):
        is_first = False
        print(line)
    end = kept.end  # before the events: those of a cell that has ended are complete
    view = session.replay_view(kept.source, chosen, is_alone=is_first)
    for event in kept.events(chosen):
        view.show(event)
    view.end(RunOutcome(kept.source.run_id, {}, 0.0))
    if end is not None:
        text = error_text(end, chosen, is_whole=ranks is None)
        if text:
            print(text)
    print(end_line(kept.source, end))


def _kept(cell: int | None) -> KeptOutput:
    cells = session.kept_outputs.cells
    if not cells:
        raise BadOptionError(
            "no %%ddp cell has run yet, so that there is no output to show. Next: run one"
        )
    kept = session.kept_outputs.get(cells[-1] if cell is None else cell)
    if kept is None:
        legal = ", ".join(f"[{number}]" for number in cells)
        raise BadOptionError(
            f"the output of cell [{cell}] is not kept: it was no %%ddp cell, or more than "
            f"{MAX_CELLS} have run since. Kept: {legal}. Next: %ddp output {cells[-1]}"
        )
    return kept


def _chosen(kept: KeptOutput, ranks: str | None) -> RankSet:
    ran = kept.source.ranks
    if ranks is None:
        return ran
    asked = chosen_ranks(ranks, kept.source.world_size)
    chosen = RankSet.of(rank for rank in asked if rank in ran)
    if not chosen:
        raise BadOptionError(
            f"cell [{kept.source.cell}] ran on {ran.describe()}, and not on {asked.describe()}"
        )
    return chosen


def dropped_lines(kept: KeptOutput, ranks: RankSet) -> list[str]:
    """Lines about output that is no longer kept, one for each rank."""
    return [
        _dropped_line(rank, chars, displays, kept.source.log_path_by_rank.get(rank, ""))
        for rank, (chars, displays) in kept.dropped(ranks).items()
    ]


def _dropped_line(rank: Rank, chars: int, displays: int, path: str) -> str:
    parts = [f"{chars:,} characters"] if chars else []
    if displays:
        parts.append(f"{displays:,} displays" if displays > 1 else "1 display")
    line = f"rank {rank} printed more before this: {' and '.join(parts)} are no longer kept here"
    return f"{line}; text: {path}" if path and chars else line


def error_text(end: End, ranks: RankSet, *, is_whole: bool) -> str:
    """The error of the cell; of some of its ranks: their tracebacks."""
    if is_whole:
        return end.error
    tracebacks = [
        (f"rank {rank}", text) for rank, text in end.traceback_by_rank.items() if rank in ranks
    ]
    return "\n".join(line for pair in tracebacks for line in pair)


def end_line(source: Source, end: End | None) -> str:
    """The last line: when the cell ran, and how it ended; None: it is running."""
    name = cell_name(source.cell)
    if end is None:
        return f"{name} has been running since {source.began_at}, on {source.ranks.describe()}"
    ran = f"{name} ran at {source.began_at} for {end.elapsed_s:.1f} s"
    if not (source.ranks - end.ok):
        return f"{ran} and ended well on {end.ok.describe()}"
    ends = [
        f"{ranks.describe()} {text}"
        for ranks, text in (
            (end.raised, "raised"),
            (end.freed, f"waited and {end.freed.verb('was', 'were')} freed"),
            (end.interrupted, f"{end.interrupted.verb('was', 'were')} interrupted"),
            (end.exited, "exited"),
            (end.unfinished, "did not end"),
            (end.ok, "ended well"),
        )
        if ranks
    ]
    return f"{ran}: {'; '.join(ends)}"
