"""The process of the notebook is killed: no process or folder of its pool is left."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.polling import poll_until

_READY = "ready"
_SCRIPT = """
import nbddp, sys
pool = nbddp.start({ranks}, nnodes={nodes})
pool.run('''
import os, subprocess
subprocess.Popen(['sleep', '1000'])
subprocess.Popen(['sleep', '1000'], start_new_session=True)
subprocess.run(['sh', '-c', 'setsid sleep 1000 >/dev/null 2>&1 &'])
if os.fork() == 0:
    os.setsid()
    import time; time.sleep(1000)
shared = torch.ones(1 << 20).share_memory_()
''')
pool.push(value=bytes(1 << 22))
kept = pool.pull("torch.ones(1 << 20).numpy()")  # a tensor would load torch here
print("ready", flush=True)
{then}
"""
_FULL = [pytest.mark.full]
#: The same path as another case; `make chaos` runs it.
_SLOW = [pytest.mark.slow]
_THEN = {
    "idle": "import time; time.sleep(1000)",
    "in a cell": "pool.run('import time; time.sleep(1000)')",
    "ranks hold the GIL": "pool.run('import ctypes; ctypes.PyDLL(None).sleep(1000)')",
    "ranks are stopped": "pool.run('import os; os.kill(os.getpid(), 19)')",
    "ranks flood": "pool.run('while True: print(\"x\" * 100)')",
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A temporary folder for the script, short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="nbo-", dir="/tmp") as name:
        yield Path(name)


def _start(script: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
    )


def _wait_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == _READY:
            return
    raise AssertionError("the script has ended")


def _marked(folder: Path) -> list[psutil.Process]:
    """Every process that works in the script's temporary folder, wherever it hangs in the tree."""
    mark = f"TMPDIR={folder}".encode()
    found = []
    for process in psutil.process_iter():
        try:
            environ = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in environ:
            found.append(process)
    return found


def _command(process: psutil.Process) -> list[str] | None:
    """The command line of a process; None if it has ended, perhaps at this moment."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return None


def _check_nothing_left(folder: Path, shared_memory: set[Path]) -> None:
    def nothing_left() -> bool:
        alive = [command for p in _marked(folder) if (command := _command(p)) is not None]
        assert not alive, alive
        left = [path.name for path in folder.iterdir() if path.name.startswith("nbddp-")]
        assert not left, left
        assert set(Path("/dev/shm").iterdir()) <= shared_memory
        return True

    poll_until(nothing_left, 10.0)


@pytest.mark.parametrize(
    "state",
    [
        pytest.param("idle", marks=_SLOW),  # as with two nodes, below
        "in a cell",
        pytest.param("ranks hold the GIL", marks=_FULL),
        pytest.param("ranks are stopped", marks=_FULL),
        pytest.param("ranks flood", marks=_FULL),
    ],
)
def test_a_killed_notebook_leaves_nothing(state: str, folder: Path):
    shared_memory = set(Path("/dev/shm").iterdir())
    process = _start(_SCRIPT.format(ranks=2, nodes=1, then=_THEN[state]), folder)
    try:
        _wait_ready(process)
        assert len(_marked(folder)) >= 8 + 3 * 2
    finally:
        process.kill()
        process.communicate()
    _check_nothing_left(folder, shared_memory)


@pytest.mark.full
def test_a_killed_notebook_with_two_nodes_leaves_nothing(folder: Path):
    shared_memory = set(Path("/dev/shm").iterdir())
    process = _start(_SCRIPT.format(ranks=1, nodes=2, then=_THEN["idle"]), folder)
    try:
        _wait_ready(process)
    finally:
        process.kill()
        process.communicate()
    _check_nothing_left(folder, shared_memory)


@pytest.mark.parametrize(
    "stopped",
    ["agent", pytest.param("fork server", marks=_FULL), pytest.param("store", marks=_FULL)],
)
def test_a_notebook_killed_beside_a_stopped_helper_leaves_nothing(stopped: str, folder: Path):
    """No process is left that would see the stopped one."""
    shared_memory = set(Path("/dev/shm").iterdir())
    process = _start(_SCRIPT.format(ranks=2, nodes=1, then=_THEN["idle"]), folder)
    try:
        _wait_ready(process)
        (agent,) = psutil.Process(process.pid).children()
        (server,) = [p for p in agent.children() if "forkserver" in " ".join(p.cmdline())]
        # In the order in which they were made; the ranks have children.
        store = min((p for p in server.children() if not p.children()), key=lambda p: p.pid)
        helper = {"agent": agent, "fork server": server, "store": store}[stopped]
        # The notebook is stopped too, before it can look.
        process.send_signal(signal.SIGSTOP)
        helper.suspend()
    finally:
        process.kill()
        process.communicate()
    _check_nothing_left(folder, shared_memory)


def test_a_notebook_killed_while_its_fork_server_loads_leaves_nothing(folder: Path):
    """The agent waits for the fork server, which loads forever here, as on a very busy machine."""
    shared_memory = set(Path("/dev/shm").iterdir())
    (folder / "loads_for_ever.py").write_text("import time\ntime.sleep(1000)\n")
    script = (
        "import os, nbddp\n"
        "os.environ['NBDDP_PRELOAD'] = 'loads_for_ever'\n"
        f"os.environ['PYTHONPATH'] = {str(folder)!r} + ':' + os.environ.get('PYTHONPATH', '')\n"
        "nbddp.start(2)"
    )
    process = _start(script, folder)
    try:
        poll_until(lambda: any(map(_reads_a_pipe, psutil.Process(process.pid).children())), 30.0)
    finally:
        process.kill()
        process.communicate()
    _check_nothing_left(folder, shared_memory)


def _reads_a_pipe(agent: psutil.Process) -> bool:
    """The pipe through which the fork server sends the number of a process."""
    return "pipe_read" in Path(f"/proc/{agent.pid}/wchan").read_text()


@pytest.mark.parametrize(
    "seen",
    [
        "agent-0.json",
        pytest.param("hub-0.sock", marks=_SLOW),
        pytest.param("agent-0.sock", marks=_SLOW),
        pytest.param("rank0.log", marks=_FULL),
    ],
)
def test_a_notebook_killed_while_it_starts_a_pool_leaves_nothing(seen: str, folder: Path):
    """The notebook is killed as soon as a certain file and the agent exist.

    Before there is an agent nobody can remove the folder; the next pool does, a day later.
    """
    shared_memory = set(Path("/dev/shm").iterdir())
    process = _start("import nbddp; nbddp.start(2)", folder)

    def has_come_so_far() -> bool:
        has_agent = list(folder.glob(f"nbddp-*/{seen}")) and psutil.Process(process.pid).children()
        return bool(has_agent) or process.poll() is not None

    poll_until(has_come_so_far, 60.0)
    process.kill()
    process.communicate()
    _check_nothing_left(folder, shared_memory)


@pytest.mark.parametrize(
    "signum",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGHUP, marks=_SLOW),
        pytest.param(signal.SIGINT, marks=_SLOW),
    ],
)
def test_a_script_that_is_asked_to_end_leaves_nothing(signum: int, folder: Path):
    shared_memory = set(Path("/dev/shm").iterdir())
    process = _start(_SCRIPT.format(ranks=2, nodes=1, then=_THEN["idle"]), folder)
    try:
        _wait_ready(process)
        process.send_signal(signum)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    _check_nothing_left(folder, shared_memory)


def test_a_script_that_ends_without_stopping_its_pool_leaves_nothing(folder: Path):
    shared_memory = set(Path("/dev/shm").iterdir())
    process = _start(_SCRIPT.format(ranks=2, nodes=1, then=""), folder)
    process.communicate(timeout=60)
    assert process.returncode == 0
    _check_nothing_left(folder, shared_memory)


@pytest.mark.full
def test_a_killed_script_and_agent_take_the_ranks_with_them(folder: Path):
    """Both at once: only daemons that ranks started on purpose cannot be reached."""
    process = _start("import nbddp\npool = nbddp.start(2)\nprint('ready', flush=True)\n"
                     "import time; time.sleep(1000)", folder)  # fmt: skip
    try:
        _wait_ready(process)
        (agent,) = psutil.Process(process.pid).children()
        process.kill()
        agent.kill()
    finally:
        process.kill()
        process.communicate()
    poll_until(lambda: not [p for p in _marked(folder) if p.status() != psutil.STATUS_ZOMBIE])
    # No process was left to remove the folder; the next pool does, when its logs are a day old.
    (left,) = folder.glob("nbddp-*")
    for path in (*left.iterdir(), left):
        os.utime(path, (0, 0), follow_symlinks=False)
    next_one = _start("import nbddp; nbddp.start(1).stop()", folder)
    next_one.communicate()
    assert next_one.returncode == 0
    assert not list(folder.glob("nbddp-*"))
