"""The pool of this process, and the views that show its cells.

Runs in: the notebook's process.
"""

import itertools
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from IPython.core.getipython import get_ipython

from nbddp.controller.diagnosis import Report
from nbddp.controller.hub import BackgroundEvent, Run
from nbddp.controller.options import PoolOptions
from nbddp.controller.pool import KeptPool, Pool
from nbddp.controller.prompts import BreakPoints
from nbddp.controller.state import PoolSnapshot
from nbddp.errors import NbddpError, NoPoolError, PoolBusyError, PoolExistsError
from nbddp.notebook import front_end_request, source_check
from nbddp.notebook.consoles import is_console, write_kernel_file
from nbddp.notebook.failed_start import FailedStart, no_pool_text, other_options_text
from nbddp.notebook.live_status import Panel
from nbddp.notebook.output import (
    AnyOut,
    BackgroundOutput,
    BackgroundViews,
    CellSink,
    EarlierCellSink,
    FoldedSink,
    KeptOutputs,
    Labels,
    RankGrid,
    Sink,
    SocketLog,
    Source,
    StartDisplay,
    StepLine,
    StillSink,
    TerminalSink,
    View,
    WidgetBlocks,
)
from nbddp.notebook.render import rank_strip, status_table, step_panel
from nbddp.notebook.widgets import Relay, StepPanel
from nbddp.settings import LIVE_PREFIX, Settings, is_rank
from nbddp.wire.messages import RankExited
from nbddp.wire.rank_set import RankSet

_current: Pool | None = None
_start_lock = threading.Lock()
_default: PoolOptions | None = None  #: options of the pool that `start_soon` starts
failed_start = FailedStart()
_start_thread: threading.Thread | None = None
_start_has_ended = threading.Event()  #: after an interrupted `Thread.join` a thread looks ended
_start_progress: PoolSnapshot | None = None  #: of that start
_panel: Panel | None = None
_relay: Relay | None = None  #: the widgets of the current pool, in a notebook
_sockets = SocketLog()  #: of the current pool
#: Grids of the cells so far whose displays a later cell may update, by the id of the display.
_grid_by_display_id: dict[str, RankGrid] = {}
#: The output of the last ``%%ddp`` cells, for ``%ddp output``.
kept_outputs = KeptOutputs()
_replay_numbers = itertools.count(1)
#: Interval in which a cell that waits for a start looks at its progress.
_START_POLL_S = 0.1
background_views = BackgroundViews()  #: shows the cells that run in the background
break_points = BreakPoints()  #: of all later cells, also of later pools


def current_pool() -> Pool | None:
    """The living pool of this process, if there is one."""
    if _current is None or _current.is_stopped:
        return None
    return _current


def pool() -> Pool:
    """Get the pool of this process, for example the one that ``%ddp start`` has started.

    Returns:
        The running pool.

    Raises:
        NbddpError: this process is a rank.
        NoPoolError: no pool is running.
        PoolBusyError: the pool is being started, and the user interrupted the wait for it.

    Example:
        >>> nbddp.pool().world_size
        2
    """
    _refuse_in_rank("pool")
    await_start()
    living = current_pool()
    if living is None:
        raise NoPoolError(no_pool_text(last_options()))
    return living


def start(
    nproc_per_node: int | None = None,
    *,
    nnodes: int | None = None,
    backend: str = "auto",
    device: str = "auto",
    devices: Sequence[int] = (),
    init: str = "env",
    threads: int | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] = "",
    timeout: float | None = None,
    cluster: str = "",
    launcher: str = "local",
    hosts: Sequence[str] = (),
    python: str = "",
    tunnel: bool = False,
    via: str = "",
    address: str = "",
    port: int = 0,
    slurm: str = "",
    image: str = "",
    kind: str = "",
    namespace: str = "",
    k8s_template: str = "",
    job: Mapping[str, str] | None = None,
    keep: str | float = 0.0,
    plain: bool = False,
) -> Pool:
    """Start a pool of rank processes, or give the running one if its options are the same.

    A process has one pool at a time. Each rank has the environment that torchrun gives (``RANK``,
    ``WORLD_SIZE``, ...), and ``init_process_group`` has been called.

    Args:
        nproc_per_node: number of ranks on each node; default: 2.
        nnodes: number of nodes; on one machine they are simulated, each with an agent of its own.
            Default: 1, or the number of hosts, or of the nodes of Slurm's allocation.
        backend: ``auto`` (NCCL if each rank has a GPU, else Gloo) or a name that torch knows.
        device: ``auto``, ``cpu`` or ``cuda``.
        devices: numbers of the CUDA devices by rank; default: all, in order.
        init: how the process group is initialised: ``env``, ``tcp``, ``file``, or ``none`` to
            leave it to a cell.
        threads: intra-op threads of each rank; default: OMP_NUM_THREADS, or else 1, as torchrun.
        env: environment variables of the ranks.
        cwd: working folder of the ranks; default: the current one.
        timeout: seconds after which a collective of the default process group fails; default:
            that of torch.
        cluster: name of a table in your ``clusters.toml``, whose options hold where an argument has
            its default.
        launcher: what starts the agents: ``local``; ``ssh``, ``slurm``, ``ray``, ``k8s``; ``pbs``,
            ``lsf``, ``flux``, ``psij`` through PSI/J; ``listen`` leaves it to you.
        hosts: machines for ``ssh``, in the order of their nodes; or text, such as ``a,b``.
        python: the interpreter on the other machines; default: the path of this one, or that of the
            image of ``k8s``.
        tunnel: ``ssh`` carries the connections of the agents to the notebook.
        via: a login node that ``ssh`` reaches from here: ``srun``, or ``ssh``, runs there, and the
            agents reach the notebook through it.
        address: of this machine, at which the other machines reach it; with ``via``: of the login
            node; with ``ray``: of the Ray cluster; default: the one that this machine belongs to.
        port: of this machine, or of the login node, for the other machines; 0: any free one.
        slurm: more options for ``srun``.
        image: of the containers in the pods of ``k8s``.
        kind: of the object of ``k8s`` that makes the pods: ``job``, ``jobset``, ``trainjob``;
            default: ``job``.
        namespace: of ``k8s``; default: that of the current context.
        k8s_template: path of a YAML file with a Pod, whose fields the pods of ``k8s`` get.
        job: options of a batch job of ``pbs``, ``lsf``, ``flux`` or ``psij``, such as
            ``{"queue": "gpu", "duration": "2h"}``, or by the scheduler's own names.
        keep: how long, such as ``"4h"``, the pool goes on after the end of this process:
            `attach` takes it back. Default: it ends with this process.
        plain: stock process groups: nothing is traced, diagnosed, freed or rebuilt.

    Returns:
        The pool, whose ranks are ready.

    Raises:
        BadOptionError: an option is not legal.
        NbddpError: this process is a rank.
        NoTorchError: torch is not installed.
        PoolBusyError: another thread starts a pool.
        PoolExistsError: a pool with other options is running.
        PoolInterruptedError: the user interrupted the start; all processes have ended.
        PoolStartError: a process could not start, or the ranks were not ready in time.

    Example:
        >>> pool = nbddp.start(2)
        >>> pool
        <Pool -n 2: 2 idle>
        >>> nbddp.start(2) is pool  # the options are the same
        True
    """
    arguments = _given(locals())
    if threading.current_thread() is _start_thread:  # the next cell tries again
        return start_with_text(arguments, lambda pool: "")
    with failed_start.noted("nbddp.start", lambda: current_pool() is not None):
        return start_with_text(arguments, lambda pool: "")


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `start` that are not the defaults themselves."""
    defaults = {"nproc_per_node": None, **(start.__kwdefaults__ or {})}
    return {name: value for name, value in arguments.items() if value is not defaults[name]}


def start_with_text(arguments: dict[str, Any], text_of: Callable[[Pool], str]) -> Pool:
    """Start a pool as `start` does, and show the progress.

    Args:
        arguments: the arguments of `start`, by name.
        text_of: gives the text that stays in the place of the progress; empty: nothing stays. It
            is not called if a pool was running.
    """
    _refuse_in_rank("start")
    options = PoolOptions.checked(**arguments)
    await_start()
    if threading.current_thread() is _start_thread:
        return _start(options, _note_start_progress)
    before, display, text = current_pool(), start_display(), ""
    try:
        pool = _start(options, display.show)
        text = "" if pool is before else text_of(pool)
    finally:
        display.end(text)
    return pool


def make_current(
    options: PoolOptions,
    on_progress: Callable[[PoolSnapshot], None] = lambda snapshot: None,
    kept: KeptPool | None = None,
) -> tuple[Pool, bool]:
    """Make the pool of this process, unless it has one.

    Args:
        options: of the pool.
        on_progress: gets the state of the pool while it starts.
        kept: a pool that lives already.

    Returns:
        The pool, and whether it was made now.
    """
    global _current  # noqa: PLW0603 - %ddp means the one pool of the process
    if not _start_lock.acquire(blocking=False):
        raise PoolBusyError("a pool is being started by another thread. Next: wait for it")
    try:
        current = current_pool()
        if current is not None:
            return current, False
        settings, check_source = Settings.from_env(), source_check.check_source
        _current = Pool(options, settings, make_view, check_source, on_progress, kept=kept)
        failed_start.forget()
        _current.break_points = break_points
        _connect_listeners(_current)
        write_kernel_file(_current)
        return _current, True
    finally:
        _start_lock.release()


def _start(options: PoolOptions, on_progress: Callable[[PoolSnapshot], None]) -> Pool:
    current, _ = make_current(options, on_progress)
    differences = current.options.differences(options)
    if not differences:
        return current
    # Without --cwd, ranks of this machine have the current folder, those of other ones have none.
    is_untyped = "" in (current.options.cwd, options.cwd)
    if is_untyped and current.options.has_machines != options.has_machines:
        differences = [name for name in differences if name != "cwd"]
    raise PoolExistsError(other_options_text(current.options, options, differences))


def _refuse_in_rank(name: str) -> None:
    """Raise `NbddpError` in a rank: each one would start ranks of its own."""
    if is_rank():
        raise NbddpError(
            f"nbddp.{name} works in the notebook, and this is a rank of a pool. "
            "Next: call it in a cell without %%ddp, or in a %%local cell"
        )


def start_soon(arguments: dict[str, Any]) -> PoolOptions:
    """Start a pool in the background; callers that need it wait in `await_start`.

    If the start fails, the next cell starts the pool again and shows the reason.

    Args:
        arguments: the arguments of `start`, by name.

    Returns:
        The options of the pool.

    Raises:
        BadOptionError: an option is not legal.
        NoTorchError: torch is not installed.
    """
    global _default, _start_thread  # noqa: PLW0603 - one pool per process

    def run() -> None:
        try:
            with suppress(NbddpError):
                start(**arguments)
        finally:
            _start_has_ended.set()

    _default = PoolOptions.checked(**arguments)
    _start_thread = threading.Thread(target=run, name="nbddp-start")
    _start_thread.start()
    return _default


def await_start() -> bool:
    """Wait for the end of the start that `start_soon` has begun; return at once without one.

    Returns:
        Whether the running cell shows the start.

    Raises:
        PoolBusyError: the user interrupted the wait; the start continues.
    """
    if _start_thread is None or _start_thread is threading.current_thread():
        return False
    if threading.current_thread() is not threading.main_thread():  # not the one of a cell
        _start_has_ended.wait()
        return False
    if _start_has_ended.is_set():
        return False
    display, text = start_display(), ""
    shown_from = time.monotonic() + Settings.from_env().progress_after_s
    try:
        while not _start_has_ended.wait(_START_POLL_S):
            if _start_progress is not None and time.monotonic() >= shown_from:
                display.show(_start_progress)
        current = current_pool()
        if display.is_shown and current is not None:
            text = status_table.introduction(current, every_cell=True)
    except KeyboardInterrupt:
        raise PoolBusyError(
            "the pool is being started, and nothing was run. Next: run the cell again"
        ) from None
    finally:
        display.end(text)
    return display.is_shown


def _note_start_progress(snapshot: PoolSnapshot) -> None:
    global _start_progress  # noqa: PLW0603 - one pool per process
    _start_progress = snapshot


def start_display() -> StartDisplay:
    """Return what shows the progress of a start, or of a restart, in the running cell."""
    sink = _foreground_sink()
    return StartDisplay(sink, has_live=_shows_live(sink))


def step_line(verb: str) -> StepLine:
    """Return what shows, in the running cell, what a verb does now."""
    sink = _foreground_sink()
    return StepLine(verb, sink, has_live=_shows_live(sink))


def _connect_listeners(pool: Pool) -> None:
    """Show the output of ranks between cells, and connect their widgets to the front end."""
    global _relay, _sockets  # noqa: PLW0603 - one pool per process
    _sockets = SocketLog()
    kernel = getattr(get_ipython(), "kernel", None)
    relay = _relay = None if kernel is None else Relay(pool, kernel)
    background = BackgroundOutput(
        pool.world_size,
        lambda: None if relay is None else relay.last_parent,
        lambda run_id: None if relay is None else relay.parent_by_run.get(run_id),
    )
    release = pool.listeners.rank_exited

    def on_background(event: BackgroundEvent | None) -> None:
        background.put(event)
        if event is None:
            background_views.end()
            if relay is not None:
                relay.end()

    pool.listeners.background = on_background
    pool.listeners.release_background()
    if relay is None:
        return

    def rank_exited(exited: RankExited) -> None:
        release(exited)
        relay.rank_exited(exited)

    pool.listeners.rank_exited = rank_exited
    pool.listeners.comm = relay.receive


def last_options() -> PoolOptions | None:
    """The options of the last pool, stopped or not; None: there was no pool."""
    return _default if _current is None else _current.options


def start_like_last(text_of: Callable[[Pool], str] = lambda pool: "") -> Pool:
    """Start a pool with the options of the last one, or with the defaults.

    Args:
        text_of: see `start_with_text`.

    Raises:
        PoolBusyError: another thread starts a pool.
        PoolInterruptedError: the user interrupted the start; the message says what runs now.
        PoolStartError: the pool did not come up.
    """
    options = last_options()
    return start_with_text({} if options is None else vars(options), text_of)


def last_report() -> Report | None:
    """Get the latest verdict on a cell of the last pool, or answer of ``%ddp diagnose``.

    Returns:
        The report, also after the pool was stopped; ``to_dict()`` makes it plain data, which
        docs/diagnosis.md describes. None: there is none.

    Example:
        >>> report = pool.diagnose()
        >>> nbddp.last_report() is report
        True
    """
    return None if _current is None else _current.last_report


def make_view(
    pool: Pool,
    run: Run,
    *,
    background: bool = False,
    out: AnyOut = "folded",
    is_alone: bool = False,
    cell: int | None = None,
    has_panel: bool = False,
    steps: StepLine | None = None,
) -> View:
    """Make the view that shows a cell, in the notebook or on the terminal.

    Args:
        pool: the pool of the cell.
        run: the run of the cell.
        background: the cell has ``--async``: it asks no questions.
        out: the value of ``--out``.
        is_alone: whether the cell of the notebook has no output but that of the ranks.
        cell: the number of the cell, under which its output is kept; None: it is not, unless it is
            the cell that ran while there was no notebook.
        has_panel: whether a panel takes the commands for stopped ranks.
        steps: the line of the verb that runs the cell.
    """
    on_main_thread = threading.current_thread() is threading.main_thread()
    folds = pool.settings.fold_output  # else the text has no limit
    sink = (
        background_sink()
        if background
        else _foreground_sink(
            keeps_place=folds and steps is None,
            place=rank_strip.blank(len(run.ranks)) if pool.world_size > 1 else "",
            is_alone=is_alone,
        )
    )
    is_front_end = _goes_to_front_end(sink)
    sink = steps or sink
    now = time.monotonic()
    left = pool.left_cell
    began = now
    if left is not None and left.run is run:  # its end takes the place of "it goes on"
        began, cell = left.began, left.execute.execution_count
    began_at = f"{datetime.now().astimezone() - timedelta(seconds=now - began):%Y-%m-%d %H:%M:%S}"
    kept = None
    if cell is not None:
        kept = kept_outputs.begin(
            Source(
                cell=cell,
                run_id=run.run_id,
                ranks=run.ranks,
                world_size=pool.world_size,
                settings=pool.settings,
                log_path_by_rank=pool.log_path_by_rank,
                scope=pool.pool_id,
                out=out,
                began_at=began_at,
            )
        )
    if folds and is_front_end:
        is_labelled = pool.world_size > 1
        sink = FoldedSink(sink, f"nbddp-fold-{run.run_id}", is_labelled=is_labelled)
    return View(
        run,
        sink,
        world_size=pool.world_size,
        settings=pool.settings,
        log_path_by_rank=pool.log_path_by_rank,
        can_ask=on_main_thread and not background,
        is_background=background,
        # The pool, not the run: a later cell may update a display.
        display_scope=pool.pool_id,
        widgets=_blocks(run, sink, Labels(1 if out == "ranks" else pool.world_size)),
        panel=_step_panel(run, sink, pool.world_size) if has_panel and is_front_end else None,
        out=out,
        can_redraw=is_alone and is_front_end,
        shows_html=is_front_end,
        shows_pictures=not is_console(),
        grids=_grid_by_display_id,
        kept=kept,
        began=began,
        began_at=began_at if steps is None else "",
        sockets=_sockets,
    )


def replay_view(source: Source, ranks: RankSet, *, is_alone: bool = False) -> View:
    """Make the view that shows again what a cell printed.

    Args:
        source: the cell.
        ranks: the ranks whose output is shown.
        is_alone: whether nothing else was shown so far: then all gets its final order, in which
            the cell has it.
    """
    number = next(_replay_numbers)
    sink = _foreground_sink()
    is_front_end = _goes_to_front_end(sink)
    if source.settings.fold_output and is_front_end:
        sink = FoldedSink(
            sink, f"nbddp-fold-{source.scope}-{number}", is_labelled=source.world_size > 1
        )
    return View(
        Run(f"{source.run_id}-{number}", ranks, backlog_bytes=0),
        sink,
        world_size=source.world_size,
        settings=source.settings,
        log_path_by_rank=source.log_path_by_rank,
        can_ask=False,
        # Displays of the cell itself stay as they are.
        display_scope=f"{source.scope}-{number}",
        out=source.out,
        can_redraw=is_alone and is_front_end,
        shows_html=is_front_end,
        shows_pictures=not is_console(),
        clock=lambda: 0.0,  # all that was printed has come: no line waits for another
    )


def _goes_to_front_end(sink: Sink) -> bool:
    """Whether a front end shows the output; terminals, ``%%capture`` and files get plain text."""
    if isinstance(sink, CellSink):
        return hasattr(sys.stdout, "pub_thread")  # an attribute of ipykernel's streams
    return isinstance(sink, EarlierCellSink)


def _shows_live(sink: Sink) -> bool:
    """Whether what is shown may change later: in a front end, or on the terminal itself."""
    return _goes_to_front_end(sink) or isinstance(sink, TerminalSink)


def _blocks(run: Run, sink: Sink, labels: Labels) -> WidgetBlocks | None:
    kernel = getattr(get_ipython(), "kernel", None)
    if _relay is None or kernel is None:
        return None
    parent = front_end_request.parent(kernel)
    _relay.note_run(run.run_id, parent)
    return WidgetBlocks(_relay, sink, labels, parent, f"nbddp-{run.run_id}")


def _step_panel(run: Run, sink: Sink, world_size: int) -> StepPanel | None:
    kernel = getattr(get_ipython(), "kernel", None)
    if _relay is None or kernel is None:
        return None

    def display(data: Mapping[str, Any], display_id: str, update: bool) -> None:
        sink.display(data, {}, display_id, update)

    return StepPanel(
        _relay,
        display,
        f"nbddp-panel-{run.run_id}",
        front_end_request.parent(kernel),
        world_size,
        bundle_of=step_panel.bundle,
    )


def begin_panel() -> None:
    """Show a live table of the ranks; an earlier one stops changing.

    Raises:
        NoPoolError: no pool is running.
        PoolBrokenError: the pool was stopped, or its hub has ended.
    """
    global _panel  # noqa: PLW0603 - one panel per process is enough
    current = pool()
    sink = background_sink()
    if isinstance(sink, TerminalSink):
        bundle = status_table.survey(current).bundle("a live table needs a notebook")
        sink.display(bundle, {}, None, False)
        return
    if _panel is not None:
        _panel.end("it continues in a later cell")
    _panel = Panel(current, sink, f"nbddp-panel-{uuid.uuid4().hex[:12]}")
    _panel.begin()


def stop(living: Pool) -> None:
    """Stop a pool.

    Its live table then ends in the running cell, so that a saved notebook has the last state.
    """
    living.stop()
    if _panel is not None and _panel.pool is living:
        _panel.end()


def end_panel() -> str:
    """End the live table, which stays as it is; return a sentence about it."""
    if _panel is None or not _panel.is_live:
        return "no live table is shown"
    _panel.end("switched off")
    return "the live table stays as it is now"


def _foreground_sink(*, keeps_place: bool = False, place: str = "", is_alone: bool = False) -> Sink:
    shell = get_ipython()
    if shell is None or getattr(shell, "kernel", None) is None:
        return TerminalSink()
    # JupyterLab names the cell. Others may not update displays (jupyter console), or somebody reads
    # the text as it comes (papermill).
    names_cells = "cellId" in (front_end_request.current().get("metadata") or {})
    sink = CellSink(shell, _new_live_id())
    if keeps_place and names_cells and _goes_to_front_end(sink):
        return StillSink(shell, _new_live_id(), place=place, is_alone=is_alone)
    return sink


def background_sink() -> Sink:
    """A sink that shows in the cell that runs now, also when later cells run."""
    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return TerminalSink()
    return EarlierCellSink(kernel, front_end_request.parent(kernel), _new_live_id())


def _new_live_id() -> str:
    return f"{LIVE_PREFIX}{uuid.uuid4().hex[:12]}"
