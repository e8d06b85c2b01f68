"""The pool in words, and each of its ranks in a row: ``%ddp status``.

Runs in: the notebook's process; `survey` asks the ranks, in any thread, also while a cell runs.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from nbddp.controller.diagnosis.rank_view import RankView
from nbddp.controller.pool.pool import Pool
from nbddp.controller.state.actions import Diagnosed
from nbddp.controller.state.rank_state import RankInfo, RankState
from nbddp.controller.state.snapshot import PoolSnapshot
from nbddp.notebook.render import fault_stacks
from nbddp.notebook.render.colours import colour_of
from nbddp.notebook.render.html import (
    WIDTH,
    Cell,
    Column,
    Table,
    clean,
    duration,
    escape,
    name_ranks,
    one_line,
    shorten,
    size,
)
from nbddp.wire.flight_recorder.schema import (
    CALLBACK_THREAD,
    WAITS_FOR_USER,
    ending_of,
)
from nbddp.wire.messages import StackDumped
from nbddp.wire.rank_set import RankSet

#: A row for each rank up to this many; beyond, one for those that do the same.
MAX_ROWS = 16
_MAX_STATE = 60
_MAX_SOURCE = 60
_MIN_PLACE = 36


@dataclass(frozen=True)
class Row:
    """What is told of one rank."""

    rank: int
    state: str
    place: str = ""  #: ``cell [4], line 5``
    source: str = ""  #: of that line
    collective: str = ""  #: the last one: ``all_reduce #7``
    collective_state: str = ""  #: ``waits 3.2 s``, ``done``
    memory_bytes: int = 0  #: of the process and its descendants, PSS; 0: not known
    memory_is_rss: bool = False  #: the system tells no PSS
    gpu_bytes: int = 0  #: that torch holds on the GPU
    pid: int = 0
    node: int = 0
    device: str = ""
    is_odd: bool = False  #: something is wrong with it
    tells: bool = True  #: what it has on the GPU, for example

    @property
    def doing(self) -> tuple[str, str, str, str]:
        """Equal for ranks that do the same, wherever they are."""
        return (self.state, self.place, self.source, self.collective)


@dataclass(frozen=True)
class Survey:
    """All that ``%ddp status`` tells."""

    headline: str
    rows: Sequence[Row]
    log_paths: Sequence[str]
    notes: Sequence[str]  #: what is wrong, and what to do about it

    def bundle(self, note: str = "", *, is_live: bool = False) -> dict[str, str]:
        """As MIME bundle.

        Args:
            note: stands below.
            is_live: it is shown again and again, and its columns stay where they are.
        """
        notes = [*self.notes, *([note] if note else [])]
        logs = f"logs: {_logs(self.log_paths)}" if self.log_paths else ""
        table = _table(self.rows, is_live=is_live)
        below = "".join(f"<div>{escape(text)}</div>" for text in notes)
        if len(self.rows) > MAX_ROWS and not is_live:  # an update would close it again
            every = _table(self.rows, is_folded=False).html()
            below += (
                '<details style="margin:4px 0"><summary style="opacity:0.7;cursor:pointer">'
                f"every rank</summary>{every}</details>"
            )
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
    """Ask the ranks, which go on with what they do. Raises `PoolBrokenError`."""
    found = pool.survey()
    snapshot = pool.snapshot
    return Survey(
        headline=headline(pool),
        rows=[row(info, found, is_running=snapshot.is_running) for info in snapshot.ranks],
        log_paths=[info.log_path for info in snapshot.ranks],
        notes=_notes(pool, snapshot, found),
    )


def row(info: RankInfo, found: Diagnosed, *, is_running: bool) -> Row:
    """What was found of one rank."""
    view = found.views.get(info.rank) or RankView(rank=info.rank, state="starting")
    peeked = found.peeks.get(info.rank)
    state, is_odd = _state(view, peeked, is_running=is_running)
    is_busy = is_running or view.look is None or view.look.activity == "callback"
    place, source = _place(view) if is_busy else ("", "")
    if info.replaced and view.look is not None:
        state += ", fresh"
    collective, collective_state = _last_collective(view)
    return Row(
        rank=info.rank,
        state=state,
        place=place,
        source=source,
        collective=collective,
        collective_state=collective_state,
        memory_bytes=peeked.memory_bytes if peeked else 0,
        memory_is_rss=bool(peeked and peeked.memory_bytes and not peeked.memory_is_pss),
        gpu_bytes=view.look.gpu_bytes if view.look else 0,
        pid=info.pid,
        node=info.node,
        device=info.device,
        is_odd=is_odd,
        tells=view.look is not None,
    )


def headline(pool: Pool) -> str:
    """One line: ranks, devices, backend."""
    infos = pool.ranks()
    devices = sorted({info.device for info in infos if info.device})
    backend = next((info.backend for info in infos if info.backend), "")
    group = f"process group {backend}" if backend else "no process group yet (--init none)"
    if pool.options.plain:
        group += ", stock (--plain)"
    ranks = "1 rank" if pool.world_size == 1 else f"{pool.world_size} ranks"
    nodes = f" on {pool.options.nnodes} nodes" if pool.options.nnodes > 1 else ""
    notes = sorted({info.note for info in infos if info.note})
    return "; ".join([f"{ranks}{nodes} on {', '.join(devices)}, {group}", *notes])


def nothing_running(pool: Pool, in_callback: RankSet) -> str:
    """Why ``%ddp interrupt`` had nothing to do, or callbacks only."""
    if in_callback:
        return f"interrupted: a widget's callback on {name_ranks(in_callback)}"
    stuck = pool.snapshot.in_state(RankState.BUSY)
    if stuck:
        return f"{stuck.describe()} did not stop when interrupted. Next: %ddp restart"
    if pool.options.plain:  # its ranks do not tell
        return "no cell is running; a widget's callback, if one was, is interrupted"
    return "no cell is running"


# --- one rank ------------------------------------------------------------------------------------


def _state(view: RankView, peeked: StackDumped | None, *, is_running: bool) -> tuple[str, bool]:
    """In a word or two, and whether that is unusual."""
    look = view.look
    state, is_odd = "idle", False
    match view.state:
        case "dead":
            return shorten(f"exited: {view.exit_text}" if view.exit_text else "exited", 60), True
        case "starting":
            return "starting", False
        case "silent" | "running" | "idle" if look is None and fault_stacks.is_stopped(peeked):
            return "stopped (SIGSTOP)", True
        case "silent":
            return "does not answer", True
        case "running" if look is None:
            state = fault_stacks.state(peeked)
        case "running":
            main = look.main if look is not None else None
            state = "waits" if main is not None and main.wait is not None else "runs"
            if main is not None:
                state = WAITS_FOR_USER.get(main.innermost, state)
        case "finished" if is_running:
            state = "finished"
        case "raised" if is_running:
            state, is_odd = shorten(one_line(view.raise_phrase), _MAX_STATE), True
    if look is not None and look.activity == "reforming":
        state = "makes its groups again"
    if look is not None and look.activity == "callback":
        state = "in a widget's callback"
    return state, is_odd


def _place(view: RankView) -> tuple[str, str]:
    """The innermost line of the user's code, and its source."""
    if view.look is None:
        is_inside = view.state in ("running", "silent")
        return (fault_stacks.place(view.stack_text) if is_inside else ""), ""
    if view.look.activity != "callback":
        site = view.error.site if view.error is not None else None
        if view.state == "raised" and site is not None:
            return str(site), site.source
        if view.state != "running":
            return "", ""
    mine = [each for each in view.look.threads if each.is_main or each.name == CALLBACK_THREAD]
    sites = [each.stack[0] for each in mine if each.stack]
    return (str(sites[0]), sites[0].source) if sites else ("", "")


# --- the table -----------------------------------------------------------------------------------


def _text(rows: Sequence[Row]) -> str:
    """Without the columns that matter least, if the place would be cut."""
    table = _table(rows)
    if table.text_width(cut_last=_MIN_PLACE) > WIDTH:
        table = _table(rows, is_lean=True)
    return table.text()


def _odd_ones(rows: Sequence[Row]) -> RankSet:
    """Ranks to be seen at once: in trouble, or few that do something else than most."""
    counts = Counter((each.state, each.place) for each in rows)
    most = max(counts.values(), default=0)
    return RankSet.of(
        each.rank
        for each in rows
        if each.is_odd
        or (most > len(rows) / 2 and counts[each.state, each.place] <= len(rows) // 4)
    )


def _table(
    rows: Sequence[Row], *, is_folded: bool = True, is_live: bool = False, is_lean: bool = False
) -> Table:
    """What is the same everywhere, and says nothing, has no column."""
    odd = _odd_ones(rows)
    groups = [[each] for each in rows]
    if is_folded and len(rows) > MAX_ROWS:
        by_doing: dict[object, list[Row]] = {}
        for each in rows:
            by_doing.setdefault(each.doing, []).append(each)
        groups = sorted(
            by_doing.values(), key=lambda group: (group[0].rank not in odd, group[0].rank)
        )
    has_places = is_live or any(each.place for each in rows)
    has_collectives = is_live or any(each.collective for each in rows)
    has_memory = any(each.memory_bytes for each in rows)
    has_gpu = any(each.tells and (each.gpu_bytes or "cuda" in each.device) for each in rows)
    has_pids = len(groups) == len(rows) and not is_lean
    has_nodes = not is_lean and len({each.node for each in rows}) > 1
    has_devices = has_pids and len({each.device for each in rows}) > 1
    columns = [Column("rank", row_px=22 * is_live), Column("state", min_px=80 * is_live)]
    columns += [Column("last collective", min_px=170 * is_live)] if has_collectives else []
    columns += [Column("memory", "right")] if has_memory else []
    columns += [Column("GPU memory", "right")] if has_gpu else []
    columns += [Column("pid", "right")] if has_pids else []
    columns += [Column("node", "right")] if has_nodes else []
    columns += [Column("device")] if has_devices else []
    # The widest, and it changes most.
    columns += [Column("at", min_px=120, wraps=not is_live)] if has_places else []
    lines = []
    for group in groups:
        first = group[0]
        ranks = RankSet.of(each.rank for each in group)
        line = [
            Cell(str(ranks), is_bold=True, colour=colour_of(ranks)),
            Cell(first.state, is_bold=first.rank in odd),
        ]
        line += [Cell(_told_collective(group))] if has_collectives else []
        memory = [each.memory_bytes for each in group]
        on_gpu = [each.gpu_bytes for each in group]
        if is_lean:
            memory, on_gpu = [max(memory)], [max(on_gpu)]
        rss = " RSS" if any(each.memory_is_rss for each in group) else ""
        line += [Cell(_range(memory) + rss)] if has_memory else []
        line += [Cell(_range(on_gpu, zero="0"))] if has_gpu else []
        line += [Cell(str(first.pid) if first.pid else "")] if has_pids else []
        line += [Cell(str(RankSet.of(each.node for each in group)))] if has_nodes else []
        line += [Cell(first.device)] if has_devices else []
        if has_places:
            source = shorten(first.source, _MAX_SOURCE)
            line.append(Cell(first.place, code=source, is_bold=first.rank in odd))
        lines.append(line)
    return Table(columns, lines)


def _told_collective(group: Sequence[Row]) -> str:
    states = {each.collective_state for each in group}
    state = states.pop() if len(states) == 1 else ""
    return " ".join(part for part in (group[0].collective, state) if part)


def _range(values: Sequence[int], zero: str = "") -> str:
    """``182 MB``, or ``182 MB to 1.2 GB`` of a group."""
    low, high = (size(value) if value else zero for value in (min(values), max(values)))
    return low if low == high else f"{low or '?'} to {high}"


def _logs(paths: Sequence[str]) -> str:
    """In one line: ``/tmp/x/rank0.log to rank3.log``."""
    known = [PurePath(path) for path in paths if path]
    if not known:
        return "none"
    folders = {path.parent for path in known}
    if len(folders) > 1:
        return ", ".join(sorted(f"{folder}/rank*.log" for folder in folders))
    more = f" to {known[-1].name}" if len(known) > 1 else ""
    return f"{known[0]}{more}"


# --- the pool ------------------------------------------------------------------------------------


def _notes(pool: Pool, snapshot: PoolSnapshot, found: Diagnosed) -> list[str]:
    notes = []
    gone = snapshot.in_state(RankState.EXITED)
    if gone:
        only = f" -r {gone}" if len(gone) < pool.world_size and not pool.options.plain else ""
        notes.append(f"{name_ranks(gone)} exited. Next: %ddp restart{only}")
    busy = RankSet.of(rank for rank, look in found.looks.items() if look.activity == "callback")
    if busy:
        notes.append(f"{name_ranks(busy)} in a widget's callback. Next: %ddp interrupt ends it")
    notes += fresh_notes(snapshot.ranks)
    stuck = snapshot.in_state(RankState.BUSY)
    if stuck and not snapshot.is_running:
        notes.append(
            f"{name_ranks(stuck)} still inside a cell that was given up. Next: %ddp restart, if "
            "they do not come back"
        )
    if pool.options.plain:
        notes.append("plain ranks do not tell: this is how they look from outside")
    if snapshot.store_is_lost:
        notes.append(
            "the store process exited: groups that exist work on, new ones cannot be made. "
            "Next: %ddp restart"
        )
    return [shorten(note, 2 * WIDTH) for note in notes]


def fresh_notes(infos: Sequence[RankInfo]) -> list[str]:
    """Ranks whose variables are gone, and why."""
    by_cause: dict[str, list[int]] = {}
    for info in infos:
        if info.replaced and info.state is not RankState.EXITED:
            by_cause.setdefault(info.replaced, []).append(info.rank)
    told = []
    for cause, ranks in by_cause.items():
        is_one = len(ranks) == 1
        why = "it was restarted" if is_one else "they were restarted"
        if cause == "exited":
            why = "it took the place of one" if is_one else "they took the places of others"
            why += " that exited"
        is_fresh = "is fresh" if is_one else "are fresh"
        told.append(f"{name_ranks(RankSet.of(ranks))} {is_fresh}: {why}, without the variables")
    return told


# --- operations ----------------------------------------------------------------------------------


def _last_collective(view: RankView) -> tuple[str, str]:
    """``all_reduce #7``, and how it stands: ``for 3.2 s``, ``done``."""
    known = (*view.operations, *(view.look.operations if view.look else ()))
    told = [each for each in known if each.site.line or each.state == "scheduled"]
    if not told:
        return "", ""
    last = max(told, key=lambda each: each.record_id)
    main = view.look.main if view.look is not None else None
    wait = main.wait if main is not None else None
    ending = ending_of(last.state, last.error)
    if ending != "open" or wait is None or view.look is None:
        return last.label(is_brief=True), ending
    return last.label(is_brief=True), f"for {duration(max(0, view.look.time_ns - wait.since_ns))}"
