"""The pool of this process, and how its cells are shown here.

Runs in: the notebook's process.
"""

import json
import os
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.core.interactiveshell import InteractiveShell

from nbddp.controller.diagnosis.report import Report
from nbddp.controller.hub.listeners import BackgroundEvent
from nbddp.controller.hub.run import Run
from nbddp.controller.pool.options import PoolOptions
from nbddp.controller.pool.pool import Pool
from nbddp.errors import NbddpError, NoPoolError, PoolBusyError, PoolExistsError
from nbddp.notebook import source_check
from nbddp.notebook.live_status import Panel
from nbddp.notebook.output import (
    BackgroundOutput,
    BackgroundViews,
    CellSink,
    EarlierCellSink,
    FoldedSink,
    Labels,
    Out,
    Sink,
    TerminalSink,
    View,
    WidgetBlocks,
)
from nbddp.notebook.render import status_table
from nbddp.notebook.widgets import Relay
from nbddp.settings import LIVE_PREFIX, NOTEBOOK_WORD, Settings
from nbddp.wire.messages import RankExited

_current: Pool | None = None
_start_lock = threading.Lock()
_default: PoolOptions | None = None  #: of the first pool, if `start_soon` was told
_starter: threading.Thread | None = None
_start_has_ended = threading.Event()  #: an interrupted `Thread.join` takes the thread for ended
_panel: Panel | None = None
_relay: Relay | None = None  #: of the current pool, in a notebook
background_views = BackgroundViews()  #: shows the cells that run in the background


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
        NoPoolError: no pool is running.
        PoolBusyError: the pool is being started, and the user interrupted the wait for it.

    Example:
        >>> nbddp.pool().world_size
        2
    """
    await_start()
    living = current_pool()
    if living is None:
        raise NoPoolError("no pool is running. Next: %ddp start -n 2, or nbddp.start(2)")
    return living


def start(
    nproc_per_node: int = 2,
    *,
    nnodes: int = 1,
    backend: str = "auto",
    device: str = "auto",
    devices: Sequence[int] = (),
    init: str = "env",
    threads: int | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] = "",
    timeout: float | None = None,
    plain: bool = False,
) -> Pool:
    """Start a pool of rank processes, or give the running one if its options are the same.

    A process has one pool at a time. Each rank has the environment that torchrun gives (``RANK``,
    ``WORLD_SIZE``, ...), and ``init_process_group`` has been called.

    Args:
        nproc_per_node: number of ranks on each node.
        nnodes: number of nodes; on one machine they are simulated, each with an agent of its own.
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
        plain: stock process groups: nothing is traced, diagnosed, freed or rebuilt.

    Returns:
        The pool, whose ranks are ready.

    Raises:
        BadOptionError: an option is not legal.
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
    arguments = locals()  # all of them; this comes first, so there is nothing else
    global _current  # noqa: PLW0603 - one pool per process is what %ddp means
    options = PoolOptions.checked(**arguments)
    await_start()
    if not _start_lock.acquire(blocking=False):
        raise PoolBusyError("a pool is being started by another thread. Next: wait for it")
    try:
        living = current_pool()
        if living is None:
            _current = Pool(options, Settings.from_env(), make_view, source_check.check_source)
            _listen(_current)
            _leave_word(_current)
            return _current
    finally:
        _start_lock.release()
    differences = living.options.differences(options)
    if not differences:
        return living
    raise PoolExistsError(
        f"a pool is running with other options: it has {living.options.describe()}, asked for was "
        f"{options.describe()} (different: {', '.join(differences)}). Next: %ddp stop, then start "
        "again; %ddp restart gives fresh ranks with the old options"
    )


def start_soon(arguments: dict[str, Any]) -> PoolOptions:
    """Start a pool in the background; who needs it waits for it.

    If that fails, the next cell starts it again and tells why it does not come up.

    Args:
        arguments: of `start`.

    Returns:
        What was made of them.

    Raises:
        BadOptionError, NoTorchError: as `start`.
    """
    global _default, _starter  # noqa: PLW0603 - likewise

    def run() -> None:
        try:
            with suppress(NbddpError):
                start(**arguments)
        finally:
            _start_has_ended.set()

    _default = PoolOptions.checked(**arguments)
    _starter = threading.Thread(target=run, name="nbddp-start")
    _starter.start()
    return _default


def await_start() -> None:
    """Wait for what `start_soon` has begun. Raises `PoolBusyError` if the user interrupts it."""
    if _starter is None or _starter is threading.current_thread():
        return
    try:
        _start_has_ended.wait()
    except KeyboardInterrupt:
        raise PoolBusyError(
            "the pool is being started, and nothing was run. Next: run the cell again"
        ) from None


def _leave_word(pool: Pool) -> None:
    """Tell ``nbddp console`` of the kernel, in the folder that only this user can enter."""
    app = getattr(getattr(get_ipython(), "kernel", None), "parent", None)
    if app is None:
        return
    word = {
        "world_size": pool.world_size,
        "pid": os.getpid(),
        "cwd": str(Path.cwd()),
        "connection_file": app.abs_connection_file,
    }
    with suppress(OSError):  # only the console needs it
        folder = Path(pool.log_path_by_rank[0]).parent
        (folder / NOTEBOOK_WORD).write_text(json.dumps(word), encoding="utf-8")


def _listen(pool: Pool) -> None:
    """What ranks tell between cells, and what their widgets say, is shown here."""
    global _relay  # noqa: PLW0603 - one pool per process
    kernel = getattr(get_ipython(), "kernel", None)
    relay = _relay = None if kernel is None else Relay(pool, kernel)
    background = BackgroundOutput(
        pool.world_size,
        lambda: None if relay is None else relay.last_parent,
        lambda run_id: None if relay is None else relay.parent_by_run.get(run_id),
    )
    release = pool.listeners.rank_exited

    def heard(event: BackgroundEvent | None) -> None:
        background.put(event)
        if event is None:
            background_views.end()
            if relay is not None:
                relay.end()

    pool.listeners.background = heard
    if relay is None:
        return

    def rank_exited(exited: RankExited) -> None:
        release(exited)
        relay.rank_exited(exited)

    pool.listeners.rank_exited = rank_exited
    pool.listeners.comm = relay.hear


def last_options() -> PoolOptions | None:
    """Options of the last pool, stopped or not: a new one without options is like it."""
    return _default if _current is None else _current.options


def start_like_last() -> Pool:
    """Start a pool with the options of the last one, or with the defaults. Raises as `start`."""
    options = last_options()
    return start() if options is None else start(**vars(options))


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


def make_view(pool: Pool, run: Run, *, background: bool = False, out: Out = "merged") -> View:
    """A view for a cell: in the notebook, or on the terminal."""
    on_main_thread = threading.current_thread() is threading.main_thread()
    sink = background_sink() if background else _foreground_sink()
    if pool.settings.fold_output and _goes_to_front_end(sink):
        is_labelled = pool.world_size > 1
        sink = FoldedSink(sink, f"nbddp-fold-{run.run_id}", is_labelled=is_labelled)
    return View(
        run,
        sink,
        world_size=pool.world_size,
        settings=pool.settings,
        log_path_by_rank=pool.log_path_by_rank,
        can_ask=on_main_thread and not background,
        # Not the run: a display made in one cell may be updated in another.
        display_scope=pool.pool_id,
        widgets=_blocks(run, sink, Labels(1 if out == "ranks" else pool.world_size)),
        out=out,
    )


def _goes_to_front_end(sink: Sink) -> bool:
    """Not to a terminal, nor to ``%%capture`` or a file, whose readers want plain text."""
    if isinstance(sink, CellSink):
        return hasattr(sys.stdout, "pub_thread")  # as ipykernel's streams have
    return isinstance(sink, EarlierCellSink)


def _blocks(run: Run, sink: Sink, labels: Labels) -> WidgetBlocks | None:
    kernel = getattr(get_ipython(), "kernel", None)
    if _relay is None or kernel is None:
        return None
    parent = _parent(kernel)
    _relay.note_run(run.run_id, parent)
    return WidgetBlocks(_relay, sink, labels, parent, f"nbddp-{run.run_id}")


def _parent(kernel: Any) -> dict[str, Any]:
    """What a message needs of the request that it answers: kept long, and without the code."""
    return {"header": kernel.get_parent().get("header", {})}


def parent_id() -> str:
    """Id of the front end's request that is served; empty where there is no front end."""
    return str(_request().get("header", {}).get("msg_id", ""))


def is_in_history() -> bool:
    """Whether the cell that runs is one of the notebook's, with a number."""
    return bool(_request().get("content", {}).get("store_history", True))


def execution_count(shell: InteractiveShell) -> int:
    """The number of the running cell; `InteractiveShell.execution_count` may be one ahead.

    0: it has none, since `nbddp console` has sent it; the next one of the notebook is not its.
    """
    if not is_in_history():
        return 0
    result = shell.displayhook.exec_result
    count = getattr(result, "execution_count", None)
    return shell.execution_count if count is None else int(count)


def _request() -> dict[str, Any]:
    kernel = getattr(get_ipython(), "kernel", None)
    return {} if kernel is None else dict(kernel.get_parent())


def begin_panel() -> None:
    """Show a table of the ranks that changes with them. Raises `NoPoolError`, `PoolBrokenError`."""
    global _panel  # noqa: PLW0603 - one panel per process is enough
    living = pool()
    sink = background_sink()
    if isinstance(sink, TerminalSink):
        bundle = status_table.survey(living).bundle("a table that changes needs a notebook")
        sink.display(bundle, {}, None, False)
        return
    if _panel is not None:
        _panel.end("it goes on in a later cell")
    _panel = Panel(living, sink, f"nbddp-panel-{uuid.uuid4().hex[:12]}")
    _panel.begin()


def stop(living: Pool) -> None:
    """Stop a pool; its live table says so while the cell still runs, and so in the saved file."""
    living.stop()
    if _panel is not None and _panel.pool is living:
        _panel.end()


def end_panel() -> str:
    """Leave the live table as it is; says whether there was one."""
    if _panel is None or not _panel.is_live:
        return "no live table is shown"
    _panel.end("switched off")
    return "the live table stays as it is now"


def _foreground_sink() -> Sink:
    shell = get_ipython()
    if shell is None or getattr(shell, "kernel", None) is None:
        return TerminalSink()
    return CellSink(shell, _new_live_id())


def background_sink() -> Sink:
    """Shows in the cell that runs now, also when later cells run."""
    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return TerminalSink()
    return EarlierCellSink(kernel, _parent(kernel), _new_live_id())


def _new_live_id() -> str:
    return f"{LIVE_PREFIX}{uuid.uuid4().hex[:12]}"
