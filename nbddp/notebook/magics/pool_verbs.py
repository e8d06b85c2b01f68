"""The verbs of ``%ddp`` about the life of a pool: ``start``, ``interrupt``, ``restart``, ``stop``.

Verbs that end a background cell print how it ended.

Runs in: the notebook's process, thread of the running cell.
"""

import itertools
import shlex
from collections.abc import Sequence
from typing import Any, TypeAlias

from IPython.core.interactiveshell import InteractiveShell

from nbddp.controller.hub import Run
from nbddp.controller.launch import objects_text
from nbddp.controller.options import (
    LINE_OPTIONS,
    PoolOptions,
    cluster_names,
    cluster_options,
    clusters_file,
    lines_outside,
)
from nbddp.controller.pool import Pool
from nbddp.controller.state import PoolSnapshot, RankState, RunOutcome, how_lost, silence_text
from nbddp.durations import write_duration
from nbddp.errors import BadOptionError, CellInterruptedError, PoolInterruptedError
from nbddp.line_breaks import with_line_breaks
from nbddp.notebook import session
from nbddp.notebook.magics import auto_mode
from nbddp.notebook.magics.keep_verbs import kept_text, others_text
from nbddp.notebook.render import status_table
from nbddp.wire.rank_set import RankSet

#: The name of a running cell, and its run.
Running: TypeAlias = tuple[str, Run]


def start(shell: InteractiveShell, *, is_printed: bool = False, **options: Any) -> None:
    """Start a pool.

    Args:
        shell: the shell whose cells run on the ranks.
        is_printed: only print the objects that the pool would make in Kubernetes.
        options: options of `nbddp.start`.

    Raises:
        BadOptionError: an option is not legal.
        NoTorchError: torch is not installed.
        PoolBusyError: another thread starts a pool.
        PoolExistsError: a pool with other options is running.
        PoolStartError: the pool did not come up.
    """
    if is_printed:
        print(objects_text(PoolOptions.checked(**options)), end="")
        return
    before = session.current_pool()
    is_auto = auto_mode.current(shell).options is not None
    pool = session.start_with_text(options, lambda pool: introduction(pool, is_auto=is_auto))
    if pool is before:
        print(with_line_breaks(f"already running: {status_table.headline(pool)}"))


def introduction(pool: Pool, *, is_auto: bool) -> str:
    """Sentences on a pool that was started, and on pools that wait for a kernel."""
    sentences = status_table.introduction(pool, every_cell=is_auto), kept_text(pool), others_text()
    return " ".join(sentence for sentence in sentences if sentence)


def listen(shell: InteractiveShell, **options: Any) -> None:
    """Start a pool whose agents the user starts, and show how.

    Args:
        shell: the shell whose cells run on the ranks.
        options: options of `nbddp.start`.

    Raises:
        BadOptionError: an option is not legal.
        PoolBusyError: another thread starts a pool.
        PoolExistsError: a pool with other options is running.
        PoolStartError: the pool did not come up.
    """
    start(shell, launcher="listen", **options)


def list_clusters(shell: InteractiveShell) -> None:
    """Print the clusters of the user, each with its options as ``%ddp start`` takes them.

    Args:
        shell: not used.

    Raises:
        BadOptionError: the file cannot be read.
    """
    lines: dict[str, str] = {}
    refusals: dict[str, str] = {}
    for name in cluster_names():
        try:
            lines[name] = _cluster_line(name)
        except BadOptionError as error:
            refusals[name] = str(error)
    width = max((len(name) for name in lines), default=0)
    for name, line in lines.items():
        print(f"{name:<{width}}  {line}")
    that = " that %ddp start can take" if refusals and not lines else ""
    place = f"{_count_clusters(len(lines))}{that} in {clusters_file()}"
    print(f"{place}. Next: %ddp start --cluster {next(iter(lines))}" if lines else place)
    for refusal in refusals.values():
        print(with_line_breaks(f"not a cluster that %ddp start can take: {refusal}"))
    if outside := lines_outside():
        print(with_line_breaks(f"lines of no cluster: {outside}"))


def _cluster_line(name: str) -> str:
    PoolOptions.checked(cluster=name)
    values = cluster_options(name, LINE_OPTIONS)
    words = [LINE_OPTIONS[option].words(value) for option, value in values.items()]
    return shlex.join(itertools.chain.from_iterable(words))


def _count_clusters(number: int) -> str:
    return {0: "no cluster", 1: "1 cluster"}.get(number, f"{number} clusters")


def stop(shell: InteractiveShell) -> None:
    """Stop the pool, if there is one.

    Raises:
        PoolInterruptedError: the user interrupted the stop; all processes have ended.
    """
    pool = session.current_pool()
    if pool is None:
        print("no pool is running")
        return
    running, snapshot = pool.running_cell, pool.snapshot
    try:
        session.stop(pool)
    except KeyboardInterrupt:  # raised when everything has ended
        raise PoolInterruptedError(
            "%ddp stop was interrupted, and still ended all processes: no pool is running"
        ) from None
    print(with_line_breaks(f"{_ended_cell(pool, running)}{stopped_text(snapshot)}"))
    for line in unheard_lines(snapshot, pool.options.keep):
        print(with_line_breaks(line))


def stopped_text(snapshot: PoolSnapshot, what: str = "") -> str:
    """Say which ranks a stop has ended: ``stopped: 4 ranks``, ``stopped: ranks 0-1``.

    Ranks that had exited before, or of which nothing was heard, are left out.

    Args:
        snapshot: the state before the stop.
        what: follows the ranks.
    """
    ended = RankSet.of(
        info.rank
        for info in snapshot.ranks
        if info.state is not RankState.EXITED and info.node not in snapshot.silent_nodes
    )
    if not ended:
        return "stopped: the pool; no rank was left that could be reached"
    all_ended = len(ended) == len(snapshot.ranks)
    ranks = status_table.ranks_in_words(len(ended)) if all_ended else ended.describe()
    return f"stopped: {ranks}{what}"


def unheard_lines(snapshot: PoolSnapshot, keep_s: float) -> list[str]:
    """Say of each node that was not heard at the stop what becomes of its ranks.

    Args:
        snapshot: the state before the stop.
        keep_s: for how long the pool goes on without its notebook; 0: it does not.
    """
    names = [f"node {node} ({facts.host})" for node, facts in enumerate(snapshot.nodes)]
    end = "when its agent has heard nothing for a while"
    gone = "when its agent finds that this notebook is gone, or has heard nothing for a while"
    if keep_s:
        end = f"{write_duration(keep_s)} after its agent heard of this notebook last (--keep)"
        gone = end
    silent = [
        f"nothing is heard of {names[node]}: its ranks end when it is reached again, or {end}"
        for node in sorted(snapshot.silent_nodes)
    ]
    given_up = [
        f"{names[lost.node]} had been {how_lost(lost)}: perhaps its ranks run on there, and "
        f"end {gone}"
        for lost in snapshot.lost
        if lost.is_unseen and lost.node < len(names)
    ]
    return [*silent, *given_up]


def restart(shell: InteractiveShell, *, ranks: str | None) -> None:
    """Replace ranks by fresh processes.

    Args:
        shell: not used.
        ranks: the ranks to replace; None: all.

    Raises:
        BadOptionError: a rank does not exist.
        NoPoolError: no pool is running.
        PoolBusyError: another thread restarts the pool, or a cell runs on other ranks only.
        PoolBrokenError: fresh ranks could not take their places; the pool is as it was.
        PoolInterruptedError: the user interrupted the restart; the message says what runs now.
        PoolStartError: the new ranks did not come up; the pool is stopped.
    """
    pool = session.pool()
    running = pool.running_cell
    display, listeners = session.start_display(), pool.listeners
    before, listeners.progress = listeners.progress, display.show
    hosts = [facts.host for facts in pool.snapshot.nodes]
    try:
        if ranks is None:
            pool.restart()
            size = status_table.headline(pool)
            answer = f"fresh ranks: {size}. All variables of the ranks are gone"
        else:
            pool.expect_idle_beside(pool.rank_set(ranks))
            answer = pool.restart(ranks)
    finally:
        listeners.progress = before
        display.end("")
    moved = moved_text(hosts, [facts.host for facts in pool.snapshot.nodes])
    print(with_line_breaks(_ended_cell(pool, running) + moved + answer))


def moved_text(before: Sequence[str], now: Sequence[str]) -> str:
    """``node 0 is on n3 now, in the place of n1. ``, or nothing: all hosts are as before."""
    moves = [
        f"node {node} is on {new} now, in the place of {old}"
        for node, (old, new) in enumerate(zip(before, now, strict=False))
        if new != old
    ]
    return f"{'; '.join(moves)}. " if moves else ""


def interrupt(shell: InteractiveShell) -> None:
    """Interrupt the running cell, wait ``Settings.interrupt_wait_s`` for its end, print that end.

    Raises:
        NoPoolError: no pool is running.
    """
    print(with_line_breaks(_interrupt(session.pool())))


def _interrupt(pool: Pool) -> str:
    running = pool.running_cell
    in_callback = pool.interrupt()
    if running is None:
        return status_table.nothing_running(pool, in_callback)
    name, run = running
    outcome = _wait_for_end(pool, run)
    if outcome is not None:
        return _ending(pool, name, outcome)
    unfinished = pool.unfinished
    if run.outcome is not None:  # it has ended a moment ago
        return _ending(pool, name, run.outcome)
    return _still_running(name, unfinished)


def _still_running(name: str, unfinished: RankSet) -> str:
    if not unfinished:  # the cell waits for a rebuild
        return (
            f"{name} was interrupted, and all ranks have left it; the process groups are still "
            "being made again. Next: wait, the next cell does so too"
        )
    inside = f"{unfinished.describe()} {unfinished.verb('is', 'are')} still inside it"
    return (
        f"{name} was sent an interrupt and has not ended yet: {inside}. "
        "Next: %ddp stacks shows where each rank is"
    )


def _ended_cell(pool: Pool, running: Running | None) -> str:
    """A line about the cell that ran before its ranks were ended; empty if no cell ran."""
    if running is None:
        return ""
    name, run = running
    outcome = _wait_for_end(pool, run)
    ended_ranks = outcome.ranks("error", "exited", "unfinished") if outcome is not None else None
    return f"{name} was running, and was ended on {ended_ranks.describe()}\n" if ended_ranks else ""


def _wait_for_end(pool: Pool, run: Run) -> RunOutcome | None:
    try:
        return run.wait_for_end(pool.settings.interrupt_wait_s)
    except KeyboardInterrupt:
        return run.outcome


def _ending(pool: Pool, name: str, outcome: RunOutcome) -> str:
    error = pool.error_of(outcome, name)
    after = f"after {outcome.elapsed_s:.1f} s"
    if error is None:
        return f"{name} has finished {after}"
    if isinstance(error, CellInterruptedError):
        busy = {info.rank for info in pool.ranks() if info.state is RankState.BUSY}
        inside = RankSet.of(busy.intersection(outcome.ranks("unfinished")))  # others came since
        left = f"; {inside.describe()} did not leave it. Next: %ddp restart -r {inside}"
        if outcome.silent:
            left = f": {silence_text(outcome.silent, interrupted=True)}"
        return f"{name} was interrupted {after}{left if inside else ''}"
    return f"{name} has failed {after}: {type(error).__name__}"
