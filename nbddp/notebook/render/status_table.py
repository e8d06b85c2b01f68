"""A headline about the pool and a row for each rank: ``%ddp status``.

Runs in: the notebook's process; `survey` asks the ranks, in any thread, also while a cell runs.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath

from nbddp.controller.diagnosis import RankView
from nbddp.controller.pool import Pool
from nbddp.controller.state import (
    Diagnosed,
    PoolSnapshot,
    RankInfo,
    RankState,
    describe_cause,
    other_agents,
)
from nbddp.notebook.render import dumped_stacks
from nbddp.notebook.render.colours import tint_of
from nbddp.notebook.render.html import (
    WIDTH,
    clean,
    details,
    duration,
    escape,
    one_line,
    shorten,
    size,
)
from nbddp.notebook.render.node_lines import MAX_NODES, node_lines, unanswered_nodes
from nbddp.notebook.render.old_cells import old_cell_notes
from nbddp.notebook.render.status_notes import fresh_notes, left_notes, store_notes
from nbddp.notebook.render.tables import Cell, Column, Table
from nbddp.wire.flight_recorder import BUSY_PERCENT, CALLBACK_THREAD, WAITS_FOR_USER
from nbddp.wire.messages import StackDumped
from nbddp.wire.rank_set import RankSet

#: Each rank has a row up to this many ranks; beyond, ranks with the same activity share one.
MAX_ROWS = 16
#: Rows of the folded part below, at most: a browser has to draw them.
_MAX_EVERY = 512
_BACKENDS = {"gloo": "Gloo", "nccl": "NCCL", "mpi": "MPI"}
_MAX_STATE = 60
_MAX_SOURCE = 60
_MIN_PLACE = 36


@dataclass(frozen=True)
class Row:
    """The status of one rank."""

    rank: int
    state: str
    place: str = ""  #: ``cell [4], line 5``
    source: str = ""  #: the source of that line
    collective: str = ""  #: the last one: ``all_reduce #7``
    collective_state: str = ""  #: ``for 3.2 s``, ``done``
    memory_bytes: int = 0  #: PSS of the process and its descendants; 0: not known
    memory_is_rss: bool = False  #: the system reports no PSS
    gpu_bytes: int = 0  #: memory that torch holds on the GPU
    pid: int = 0
    node: int = 0
    device: str = ""
    is_odd: bool = False  #: something is wrong with the rank
    has_answered: bool = True  #: the rank described itself, so that its GPU memory is known

    @property
    def activity(self) -> tuple[str, str, str, str]:
        """A key that is equal for ranks that do the same, on any node."""
        return (self.state, self.place, self.source, self.collective)


@dataclass(frozen=True)
class Survey:
    """The content of ``%ddp status``."""

    headline: str
    rows: Sequence[Row]
    log_paths: Sequence[str]
    notes: Sequence[str]  #: problems, each with the next step

    def bundle(self, note: str = "", *, is_live: bool = False) -> dict[str, str]:
        """The survey as a MIME bundle.

        Args:
            note: a line below the table.
            is_live: the bundle is one of many updates, so its columns do not move.
        """
        notes = [*self.notes, *([note] if note else [])]
        logs = f"logs: {_log_paths(self.log_paths)}" if self.log_paths else ""
        table = _table(self.rows, is_live=is_live)
        below = "".join(f"<div>{escape(text)}</div>" for text in notes)
        if len(self.rows) > MAX_ROWS and not is_live:  # an update would close it again
            shown = self.rows[:_MAX_EVERY]
            title = "every rank" if len(shown) == len(self.rows) else f"ranks 0-{len(shown) - 1}"
            below += details(title, _table(shown, is_folded=False).html())
        if logs:
            below += f'<div style="opacity:0.7;font-size:90%">{escape(logs)}</div>'
        return {
            "text/plain": clean(
                "\n".join([self.headline, _text(self.rows), *notes, *([logs] if logs else [])])
            ),
            "text/html": (
                f"<div><div><b>{escape(self.headline)}</b></div>{table.html()}{below}</div>"
            ),
        }


def survey(pool: Pool) -> Survey:
    """Ask the ranks for their status; a running cell continues.

    Raises:
        PoolBrokenError: the hub does not answer.
    """
    diagnosed = pool.survey()
    snapshot = pool.snapshot
    nodes = node_lines(
        snapshot.nodes,
        {each.node: each.silent_s for each in pool.silences(pool.all_ranks)},
        {node: _why_lost(snapshot, node) for node in snapshot.lost_agents},
        behind={each.node: each.state for each in snapshot.behind if each.is_heard},
        unanswered=unanswered_nodes(snapshot, diagnosed),
        silent_after_s=pool.settings.silent_after_s,
    )
    infos = pool.history.replaced.marked(snapshot.ranks)
    runs, lost = snapshot.is_running, snapshot.lost_agents
    return Survey(
        headline=headline(pool),
        rows=[
            row(
                each,
                diagnosed,
                is_running=runs,
                is_lost=each.node in lost,
                was_freed=pool.history.was_freed,
            )
            for each in infos
        ],
        log_paths=[*pool.log_path_by_rank.values()],
        notes=[*_notes(pool, snapshot, diagnosed), *nodes, *pool.job_ends()],
    )


def _why_lost(snapshot: PoolSnapshot, node: int) -> str:
    return "".join(f": {describe_cause(lost)}" for lost in snapshot.lost if lost.node == node)


def row(
    info: RankInfo,
    diagnosed: Diagnosed,
    *,
    is_running: bool,
    is_lost: bool = False,
    was_freed: Callable[[str, int], bool] = lambda run_id, rank: False,
) -> Row:
    """The row of one rank.

    Args:
        info: the rank, as the pool knows it.
        diagnosed: the answers of all ranks.
        is_running: a cell runs, on this rank or on others.
        is_lost: its node is, perhaps since before this notebook came.
        was_freed: whether the card of a run says that a rank waited and was freed.
    """
    view = diagnosed.views.get(info.rank) or RankView(rank=info.rank, state="starting")
    dump = diagnosed.peeks.get(info.rank)
    state, is_odd = _state(view, dump, is_running=is_running)
    is_lost |= info.exited is not None and bool(info.exited.lost_agent)
    if is_lost and info.state is RankState.EXITED:
        state = "lost with its node"  # the line of the node says why
    is_busy = is_running or view.look is None or view.look.activity == "callback"
    place, source = _place(view) if is_busy else ("", "")
    if info.replaced and view.look is not None:
        state += ", fresh"
    collective, collective_state = _last_collective(view, was_freed)
    return Row(
        rank=info.rank,
        state=state,
        place=place,
        source=source,
        collective=collective,
        collective_state=collective_state,
        memory_bytes=dump.memory_bytes if dump else 0,
        memory_is_rss=bool(dump and dump.memory_bytes and not dump.memory_is_pss),
        gpu_bytes=view.look.gpu_bytes if view.look else 0,
        pid=info.pid,
        node=info.node,
        device=info.device,
        is_odd=is_odd,
        has_answered=view.look is not None,
    )


def headline(pool: Pool) -> str:
    """One line about the pool: ranks, nodes, devices, backend."""
    infos = pool.ranks()
    devices = sorted({info.device for info in infos if info.device})
    backend = next((info.backend for info in infos if info.backend), "")
    group = f"process group {backend}" if backend else "process groups of your cells (--init none)"
    if pool.options.plain:
        group += ", stock (--plain)"
    nodes = f" on {pool.options.nnodes} nodes" if pool.options.nnodes > 1 else ""
    notes = sorted({info.note for info in infos if info.note})
    cluster = f"cluster {pool.options.cluster}: " if pool.options.cluster else ""
    size = f"{cluster}{count_ranks(pool)}{nodes}"
    return "; ".join([f"{size} on {', '.join(devices)}, {group}", *notes])


def count_ranks(pool: Pool) -> str:
    """``1 rank``, ``4 ranks``."""
    return ranks_in_words(pool.world_size)


def ranks_in_words(count: int) -> str:
    """``1 rank``, ``4 ranks``."""
    return "1 rank" if count == 1 else f"{count} ranks"


def introduction(pool: Pool, *, every_cell: bool) -> str:
    """Sentences about a new pool, for a reader to whom ranks and backends are new.

    Args:
        pool: the living pool.
        every_cell: whether cells without ``%%ddp`` run on the ranks, too.

    Returns:
        ``4 processes (ranks 0-3) on the CPU, connected with Gloo. A cell that begins with %%ddp
        runs on all of them.``
    """
    infos = pool.ranks()
    size, backend = pool.world_size, next((info.backend for info in infos if info.backend), "")
    processes = "1 process (rank 0)" if size == 1 else f"{size} processes (ranks 0-{size - 1})"
    nodes = f" on {pool.options.nnodes} nodes" if pool.options.nnodes > 1 else ""
    devices = ", ".join(sorted({info.device for info in infos if info.device}))
    group = f"connected with {_BACKENDS.get(backend, backend)}"
    if not backend:
        group = "no process group yet (--init none)"
    if pool.options.plain:
        group += ", stock groups (--plain)"
    them = "it" if size == 1 else "all of them"
    cells = f"Each cell runs on {them}; %%local keeps one here"
    if not every_cell:
        cells = f"A cell that begins with %%ddp runs on {them}"
    notes = "".join(f" Note: {note}." for note in sorted({info.note for info in infos} - {""}))
    place = "the CPU" if devices == "cpu" else devices
    cluster = f"Cluster {pool.options.cluster}: " if pool.options.cluster else ""
    ends = "".join(f" {end}." for end in pool.job_ends())
    return f"{cluster}{processes}{nodes} on {place}, {group}. {cells}.{notes}{ends}"


def nothing_running(pool: Pool, in_callback: RankSet) -> str:
    """The answer of ``%ddp interrupt`` when no cell runs.

    Args:
        pool: the living pool.
        in_callback: ranks whose widget callback was interrupted.
    """
    if in_callback:
        return f"interrupted: a widget's callback on {in_callback.describe()}"
    snapshot = pool.snapshot
    if stuck := snapshot.in_state(RankState.BUSY):
        restart = _restart_of(pool, snapshot, stuck)
        return f"{stuck.describe()} did not stop when interrupted. Next: {restart}"
    if pool.options.plain:  # its ranks do not report callbacks
        return "no cell is running; a widget's callback, if one was, is interrupted"
    return "no cell is running"


# --- one rank ------------------------------------------------------------------------------------


def _state(view: RankView, dump: StackDumped | None, *, is_running: bool) -> tuple[str, bool]:
    """The state in a few words, and whether something is wrong."""
    look = view.look
    state, is_odd = "idle", False
    match view.state:
        case "dead":
            return shorten(f"exited: {view.exit_text}" if view.exit_text else "exited", 60), True
        case "starting":
            return "starting", False
        case "silent" | "running" | "idle" if look is None and dumped_stacks.is_stopped(dump):
            return "stopped (SIGSTOP)", True
        case "silent":
            return "does not answer", True
        case "running" if look is None:
            state = dumped_stacks.state(dump)
        case "running":
            main = look.main if look is not None else None
            state = "waits" if main is not None and main.wait is not None else "runs"
            if main is not None:
                state = WAITS_FOR_USER.get(main.innermost, state)
        case "finished" if is_running:
            state = "finished"
        case "raised" if is_running:
            state, is_odd = shorten(one_line(view.raise_phrase), _MAX_STATE), True
    if look is not None and look.activity == "idle" and look.cpu_percent >= BUSY_PERCENT:
        state, is_odd = f"{round(look.cpu_percent, -1)} % CPU between cells", True
    if look is not None and look.activity == "reforming":
        state = "makes its groups again"
    if look is not None and look.activity == "callback":
        state = "in a widget's callback"
    return state, is_odd


def _place(view: RankView) -> tuple[str, str]:
    """The innermost line of the user's code, and its source."""
    if view.look is None:
        is_inside = view.state in ("running", "silent")
        return (dumped_stacks.place(view.stack_text) if is_inside else ""), ""
    if view.look.activity != "callback":
        site = view.error.site if view.error is not None else None
        if view.state == "raised" and site is not None:
            return str(site), site.source
        if view.state != "running":
            return "", ""
    threads = [
        thread for thread in view.look.threads if thread.is_main or thread.name == CALLBACK_THREAD
    ]
    sites = [thread.stack[0] for thread in threads if thread.stack]
    return (str(sites[0]), sites[0].source) if sites else ("", "")


# --- the table -----------------------------------------------------------------------------------


def _text(rows: Sequence[Row]) -> str:
    """The table as text; it lacks the least important columns if the place would be cut."""
    table = _table(rows)
    if table.text_width(cut_last=_MIN_PLACE) > WIDTH:
        table = _table(rows, is_lean=True)
    return table.text()


def _unusual_ranks(rows: Sequence[Row]) -> RankSet:
    """Ranks that stand out: something is wrong, or a few differ from most."""
    counts = Counter((row.state, row.place) for row in rows)
    most = max(counts.values(), default=0)
    return RankSet.of(
        row.rank
        for row in rows
        if row.is_odd or (most > len(rows) / 2 and counts[row.state, row.place] <= len(rows) // 4)
    )


def _table(
    rows: Sequence[Row], *, is_folded: bool = True, is_live: bool = False, is_lean: bool = False
) -> Table:
    """The table, without the columns in which all ranks agree or that are empty.

    Args:
        rows: all ranks.
        is_folded: ranks with the same activity share a row if there are more than `MAX_ROWS`.
        is_live: the columns do not depend on the rows, so that updates do not move them.
        is_lean: devices are left out, and pids, unless there are several nodes.
    """
    odd = _unusual_ranks(rows)
    groups = [[row] for row in rows]
    if is_folded and len(rows) > MAX_ROWS:
        by_activity: dict[object, list[Row]] = {}
        for row in rows:
            by_activity.setdefault(row.activity, []).append(row)
        groups = sorted(
            by_activity.values(), key=lambda group: (group[0].rank not in odd, group[0].rank)
        )
    has_places = is_live or any(row.place for row in rows)
    has_collectives = is_live or any(row.collective for row in rows)
    has_memory = any(row.memory_bytes for row in rows)
    has_gpu = any(row.has_answered and (row.gpu_bytes or "cuda" in row.device) for row in rows)
    # Several nodes have processes with equal pids: only both together name one.
    has_nodes = len({row.node for row in rows}) > 1
    has_pids = len(groups) == len(rows) and (has_nodes or not is_lean)
    has_devices = has_pids and not is_lean and len({row.device for row in rows}) > 1
    columns = [Column("rank", row_px=22 * is_live), Column("state", min_px=80 * is_live)]
    columns += [Column("last collective", min_px=170 * is_live)] if has_collectives else []
    columns += [Column("memory", "right")] if has_memory else []
    columns += [Column("GPU memory", "right")] if has_gpu else []
    columns += [Column("pid", "right")] if has_pids else []
    columns += [Column("node", "right")] if has_nodes else []
    columns += [Column("device")] if has_devices else []
    # The widest column, which changes most often, comes last.
    columns += [Column("at", min_px=120, wraps=not is_live)] if has_places else []
    lines = []
    for group in groups:
        first = group[0]
        ranks = RankSet.of(row.rank for row in group)
        line = [
            Cell(str(ranks), is_bold=True, style=tint_of(ranks)),
            Cell(first.state, is_bold=first.rank in odd),
        ]
        line += [Cell(_collective_text(group))] if has_collectives else []
        memory = [row.memory_bytes for row in group]
        on_gpu = [row.gpu_bytes for row in group]
        if is_lean:
            memory, on_gpu = [max(memory)], [max(on_gpu)]
        rss = " RSS" if any(row.memory_is_rss for row in group) else ""
        line += [Cell(_range(memory) + rss)] if has_memory else []
        line += [Cell(_range(on_gpu, zero="0"))] if has_gpu else []
        line += [Cell(str(first.pid) if first.pid else "")] if has_pids else []
        line += [Cell(str(RankSet.of(row.node for row in group)))] if has_nodes else []
        line += [Cell(first.device)] if has_devices else []
        if has_places:
            source = shorten(first.source, _MAX_SOURCE)
            line.append(Cell(first.place, code=source, is_bold=first.rank in odd))
        lines.append(line)
    return Table(columns, lines)


def _collective_text(group: Sequence[Row]) -> str:
    states = {row.collective_state for row in group}
    state = states.pop() if len(states) == 1 else ""
    return " ".join(part for part in (group[0].collective, state) if part)


def _range(values: Sequence[int], zero: str = "") -> str:
    """``182 MB``, or ``182 MB to 1.2 GB`` for a group."""
    low, high = (size(value) if value else zero for value in (min(values), max(values)))
    return low if low == high else f"{low or '?'} to {high}"


def _log_paths(paths: Sequence[str]) -> str:
    """All paths in one line: ``/tmp/x/rank0.log to rank3.log``."""
    known = [PurePath(path) for path in paths if path]
    if not known:
        return "none"
    folders = {path.parent: None for path in known}
    if len(folders) > MAX_NODES:
        return f"{known[0]} to {known[-1]}; %ddp log RANK shows one"
    if len(folders) > 1:
        return ", ".join(sorted(f"{folder}/rank*.log" for folder in folders))
    more = f" to {known[-1].name}" if len(known) > 1 else ""
    return f"{known[0]}{more}"


# --- the pool ------------------------------------------------------------------------------------


def _restart_of(pool: Pool, snapshot: PoolSnapshot, ranks: RankSet) -> str:
    """The command that gives these ranks fresh processes, and keeps the others where it can."""
    is_whole = pool.options.plain or len(ranks) == pool.world_size
    return "%ddp restart" if is_whole or snapshot.obstacle(ranks) else f"%ddp restart -r {ranks}"


def _notes(pool: Pool, snapshot: PoolSnapshot, diagnosed: Diagnosed) -> list[str]:
    notes = []
    gone = snapshot.in_state(RankState.EXITED)
    lost = RankSet.of(info.rank for info in snapshot.ranks if info.node in snapshot.lost_agents)
    if exited := gone - lost:
        notes.append(f"{exited.describe()} exited. Next: {_restart_of(pool, snapshot, exited)}")
    if lost:
        nodes = " and ".join(f"node {node}" for node in sorted(snapshot.lost_agents))
        notes.append(
            f"{lost.describe()} {lost.verb('was', 'were')} lost with {nodes}. Next: "
            f"{_restart_of(pool, snapshot, lost)} asks for "
            f"{other_agents(len(snapshot.lost_agents))}"
        )
    busy = RankSet.of(rank for rank, look in diagnosed.looks.items() if look.activity == "callback")
    if busy:
        notes.append(f"{busy.describe()} in a widget's callback. Next: %ddp interrupt ends it")
    notes += fresh_notes(pool.history.replaced.marked(snapshot.ranks))
    notes += left_notes(diagnosed)
    notes += old_cell_notes(snapshot, diagnosed, partial(_restart_of, pool, snapshot))
    if pool.options.plain:
        notes.append("plain ranks do not report their state: this is how they look from outside")
    return [shorten(note, 2 * WIDTH) for note in [*notes, *store_notes(snapshot)]]


# --- operations ----------------------------------------------------------------------------------


def _last_collective(view: RankView, was_freed: Callable[[str, int], bool]) -> tuple[str, str]:
    """``all_reduce #7``, and its state: ``for 3.2 s``, ``done``."""
    known = (*view.operations, *(view.look.operations if view.look else ()))
    operations = [
        operation for operation in known if operation.site.line or operation.state == "scheduled"
    ]
    if not operations:
        return "", ""
    last = max(operations, key=lambda operation: operation.record_id)
    main = view.look.main if view.look is not None else None
    wait = main.wait if main is not None else None
    ending: str = last.ending
    # Beside a rank that exits, Gloo or nbddp ends a wait, by chance: the card says that of both.
    is_of_peer = last.failure is not None and last.failure.kind == "lost"
    if is_of_peer and was_freed(last.run_id, view.rank):
        ending = "freed"
    if ending != "open" or wait is None or view.look is None:
        return last.label(is_brief=True), ending
    return last.label(is_brief=True), f"for {duration(max(0, view.look.time_ns - wait.since_ns))}"
