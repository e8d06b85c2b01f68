"""Shows the start of a pool: the step that takes the time, and in the end a sentence on the pool.

Runs in: the notebook's process, in the thread that waits for the start.
"""

from nbddp.controller.state import Phase, PoolSnapshot, RankState
from nbddp.line_breaks import with_line_breaks
from nbddp.notebook.output.sinks import Live, Sink
from nbddp.wire.rank_set import RankSet


class StartDisplay:
    """One line that changes in place, and a text at the end.

    Args:
        sink: the running cell, or a terminal.
        has_live: whether the sink can show a line that changes.
    """

    def __init__(self, sink: Sink, *, has_live: bool) -> None:
        self._sink = sink
        self._has_live = has_live
        self._lines: tuple[str, ...] = ()
        self.is_shown = False  #: whether `show` was called

    def show(self, snapshot: PoolSnapshot) -> None:
        """Show the progress of the start."""
        self.is_shown = True
        lines = (progress_line(snapshot), *snapshot.waits_for.splitlines())
        if self._has_live:
            if lines != self._lines:
                self._sink.live(Live(lines))
        elif lines[1:] and lines[1:] != self._lines[1:]:
            self._sink.text("stdout", f"{snapshot.waits_for}\n")  # perhaps the user has to act
        self._lines = lines

    def end(self, text: str) -> None:
        """Remove the progress, and print ``text`` unless it is empty."""
        if self._lines and self._has_live:
            self._sink.live(Live())
        if text:
            # Not in the place of the progress: `jupyter console` shows no updates.
            self._sink.text("stdout", f"{with_line_breaks(text, 0)}\n")


def progress_line(snapshot: PoolSnapshot) -> str:
    """``starting 4 ranks ... 2 of 4 ready``, ``... nodes joined: 1 of 2``."""
    count = len(snapshot.ranks)
    if snapshot.phase is Phase.UP and snapshot.waits_for:
        return f"replacing a lost node ... {_step(snapshot, count)}"
    if snapshot.phase is Phase.UP and snapshot.replacing:
        return f"replacing {snapshot.replacing.describe()} ... {_repair(snapshot)}".rstrip()
    ranks = f"{count} {'rank' if count == 1 else 'ranks'}"
    what = f"taking {ranks} back" if snapshot.is_taken_back else f"starting {ranks}"
    return f"{what} ... {_step(snapshot, count)}"


def _repair(snapshot: PoolSnapshot) -> str:
    """Return the step that takes the time while some ranks are replaced; empty: it is not known."""
    ranks = snapshot.replacing
    busy = snapshot.in_state(RankState.BUSY) - ranks
    idle = snapshot.in_state(RankState.IDLE) - ranks
    match snapshot.repair:
        case "ends":
            return f"ending the old {'process' if len(ranks) == 1 else 'processes'}"
        case "starts":
            ready = set(ranks).intersection(snapshot.in_state(RankState.IDLE))
            return f"{len(ready)} of {len(ranks)} ready"
        case "looks":
            asked = RankSet.of([*idle, *busy])
            return f"asking {asked.describe()} for {asked.verb('its', 'their')} process groups"
        case "forms":
            return f"making the process groups again with {idle.describe()}"
        case "":
            return f"waiting for {busy.describe()}, still in a cell" if busy else ""


def _step(snapshot: PoolSnapshot, count: int) -> str:
    """Return the step that takes the time now."""
    if snapshot.waits_for:
        nodes = len({info.node for info in snapshot.ranks})
        return f"nodes joined: {snapshot.joined} of {nodes}"
    if snapshot.phase is Phase.AGENTS:
        return "starting the agent"
    if snapshot.phase is Phase.STOPPING:
        return "ending the old processes"
    if snapshot.phase is Phase.STORE:
        # The store is forked from the process that imports torch for all, once per agent.
        return (
            "starting the store" if snapshot.generation else "importing torch, once for all ranks"
        )
    made = sum(info.pid > 0 for info in snapshot.ranks)
    ready = len(snapshot.in_state(RankState.IDLE))
    if not ready and made < count:
        return f"processes made: {made} of {count}"
    return f"{ready} of {count} ready"
