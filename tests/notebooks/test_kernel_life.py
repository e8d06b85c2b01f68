"""A pool starts and ends with its kernel."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nbddp.line_breaks import with_line_breaks
from tests.support.kernel import Kernel, running_kernel
from tests.support.polling import poll_until


@pytest.fixture
def folder() -> Iterator[Path]:
    """A temporary folder for the kernel, short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="nbk-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def own_kernel(folder: Path) -> Iterator[Kernel]:
    with running_kernel(TMPDIR=str(folder), NBDDP_INTERRUPT_WAIT_S="15") as kernel:
        kernel.ok("%load_ext nbddp")
        kernel.ok("%ddp start -n 2")
        kernel.ok("%%ddp\nimport subprocess\n_ = subprocess.Popen(['sleep', '99'],"
                  " start_new_session=True)")  # fmt: skip
        yield kernel


@pytest.fixture(scope="module")
def lasting_folder() -> Iterator[Path]:
    """The temporary folder of the lasting kernel."""
    with tempfile.TemporaryDirectory(prefix="nbk-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def lasting_kernel(lasting_folder: Path) -> Iterator[Kernel]:
    with running_kernel(TMPDIR=str(lasting_folder), NBDDP_INTERRUPT_WAIT_S="15") as kernel:
        kernel.ok("%load_ext nbddp")
        yield kernel


@pytest.fixture
def living_kernel(lasting_kernel: Kernel) -> Kernel:
    """A kernel with fresh ranks, for a test that leaves a kernel with the extension."""
    started = lasting_kernel.run("%ddp start -n 2")
    if "PoolExistsError" in started.error:  # the last test has started another one
        lasting_kernel.ok("%ddp stop")
        lasting_kernel.ok("%ddp start -n 2")
    elif "already running" in started.text:
        lasting_kernel.ok("%ddp restart")
    else:
        assert started.status == "ok", started
    return lasting_kernel


def _pool_folders(folder: Path) -> list[Path]:
    return list(folder.glob("nbddp-*"))


def _check_gone(processes: list[psutil.Process], folder: Path) -> None:
    def gone() -> bool:
        alive = [process for process in processes if process.is_running()]
        assert not alive, alive
        assert not _pool_folders(folder)
        return True

    poll_until(gone, 10.0)


def test_a_shutdown_leaves_nothing(own_kernel: Kernel, folder: Path):
    below = own_kernel.process.children(recursive=True)
    assert len(below) >= 8  # agent, fork server, tracker, store, two ranks, their children
    assert _pool_folders(folder)
    own_kernel.shutdown()
    _check_gone(below, folder)


@pytest.mark.full
def test_a_shutdown_in_the_middle_of_a_cell_leaves_nothing(own_kernel: Kernel, folder: Path):
    cell_id = own_kernel.execute("%%ddp\nimport time\nprint('in')\nwhile True: time.sleep(0.02)")
    own_kernel.wait_text(cell_id, "in")
    below = own_kernel.process.children(recursive=True)
    own_kernel.shutdown()
    _check_gone(below, folder)


@pytest.mark.full
def test_a_shutdown_while_a_background_cell_is_awaited_leaves_nothing(
    own_kernel: Kernel, folder: Path
):
    own_kernel.ok("%%ddp --async\nimport time\nwhile True: time.sleep(0.02)")
    cell_id = own_kernel.execute("handle = _\nprint('in')\nawait handle")
    own_kernel.wait_text(cell_id, "in")
    below = own_kernel.process.children(recursive=True)
    own_kernel.shutdown()
    _check_gone(below, folder)


@pytest.mark.full  # the commands below that end a background cell say it
@pytest.mark.parametrize("how", ["stop", "restart"])
def test_a_background_cell_ends_with_its_ranks(living_kernel: Kernel, how: str):
    living_kernel.ok("%%ddp --async\nimport time\nwhile True: time.sleep(0.02)")
    living_kernel.ok("handle = _")
    living_kernel.ok(f"%ddp {how}")
    assert living_kernel.run("handle.wait(10)").error
    assert living_kernel.value("handle.state") == "'failed'"


def test_a_restarted_kernel_has_no_pool_and_may_start_one(own_kernel: Kernel, folder: Path):
    below = own_kernel.process.children(recursive=True)
    own_kernel.manager.restart_kernel()
    own_kernel.client.wait_for_ready(timeout=20)
    _check_gone(below, folder)
    own_kernel.ok("%load_ext nbddp")
    assert "no pool is running" in own_kernel.run("%ddp status").error
    cell = own_kernel.ok("%%ddp\nprint('new')")
    started = "no pool was running, so one was started: 2 processes (ranks 0-1) on the CPU"
    assert cell.page[0].text.startswith(started)
    assert "[0-1] new" in cell.lines


def test_a_start_shows_its_progress_and_says_what_was_started(lasting_kernel: Kernel):
    if "no pool is running" not in lasting_kernel.run("%ddp status").error:
        lasting_kernel.ok("%ddp stop")
    cell = lasting_kernel.ok("%ddp start -n 2")
    first, *_ = cell.of("display_data")
    assert re.fullmatch(r"starting( 2 ranks \.\.\. [a-z0-9, ]+)?", first.text)
    assert cell.lines == [
        "2 processes (ranks 0-1) on the CPU, connected with Gloo. A cell that begins with",
        "%%ddp runs on all of them.",
    ]
    assert [message.kind for message in cell.page] == ["stream"]  # the progress is gone
    assert lasting_kernel.ok("%ddp start -n 2").text == (
        "already running: 2 ranks on cpu, process group gloo\n"
    )


@pytest.mark.full  # as `test_orphans` does it with scripts
def test_a_killed_kernel_leaves_nothing(own_kernel: Kernel, folder: Path):
    below = own_kernel.process.children(recursive=True)
    own_kernel.process.kill()
    _check_gone(below, folder)


@pytest.mark.full
def test_two_kernels_have_two_pools(living_kernel: Kernel, lasting_folder: Path):
    with running_kernel(TMPDIR=str(lasting_folder)) as other:
        other.ok("%load_ext nbddp")
        other.ok("%ddp start -n 1")
        assert len(_pool_folders(lasting_folder)) == 2
        living_kernel.ok("%%ddp\nmine = 'own'")
        assert "NameError" in other.run("%%ddp\nmine").error
        other.ok("%ddp stop")
        assert living_kernel.ok("%%ddp\nprint(mine, world_size)").text == "[0-1] own 2\n"


def test_stop_status_start_and_restart(living_kernel: Kernel, lasting_folder: Path):
    status = living_kernel.ok("%ddp status").page[0].text
    assert status.count("idle") == 2
    restart = living_kernel.ok("%ddp restart")
    assert "fresh ranks: 2 ranks" in restart.text
    assert "All variables of the ranks are gone" in restart.text.replace("\n", " ")
    own = {message.display_id for message in restart.of("display_data")}
    # Its progress is shown in its own cell, and not in that of the start.
    assert {message.display_id for message in restart.of("update_display_data")} <= own
    assert "starting" not in "".join(message.text for message in restart.page)
    assert "already running" in living_kernel.ok("%ddp start -n 2").text
    assert "stopped: 2 ranks" in living_kernel.ok("%ddp stop").text
    assert not _pool_folders(lasting_folder)
    assert "no pool is running" in living_kernel.ok("%ddp stop").text
    assert "3 processes" in living_kernel.ok("%ddp start -n 3").page[0].text
    assert living_kernel.ok("%%ddp\nprint(world_size)").text == "[0-2] 3\n"


def test_a_dead_rank_ends_the_cell_and_the_kernel_continues(living_kernel: Kernel):
    cell = living_kernel.run(
        "%%ddp\nimport os\nprint('before')\nif rank == 1: os.kill(os.getpid(), 9)"
    )
    how = "exited with SIGKILL (signal 9) while it ran cell ["
    assert f"RankExitedError: rank 1 {how}" in cell.error
    page = " ".join("\n".join(message.text for message in cell.page).split())
    for words in ("SIGKILL (signal 9)", "before", "rank 1 was replaced by a fresh process"):
        assert words in page
    assert living_kernel.value("1 + 1") == "2"
    assert living_kernel.ok("%%ddp\ndist.barrier(); print('well')").text == "[0-1] well\n"


#: Rank 1 locks a lock of C twice, which no signal ends, and holds the GIL.
_STUCK_IN_C = """%%ddp
import ctypes, time
lock = ctypes.create_string_buffer(128)
print("in")
if rank == 1:
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(lock)
while True:
    time.sleep(0.02)
"""


def test_a_second_interrupt_gives_the_prompt_back(living_kernel: Kernel):
    cell_id = living_kernel.execute(_STUCK_IN_C)
    living_kernel.wait_text(cell_id, "in")
    living_kernel.interrupt()
    living_kernel.wait_text(cell_id, "waiting for rank 1")
    living_kernel.interrupt()
    cell = living_kernel.finish(cell_id)
    assert "rank 1 is still inside the cell" in cell.error
    assert "rank 1 is still in an old cell" in living_kernel.run("%%ddp\npass").error
    living_kernel.ok("%ddp restart")
    assert living_kernel.ok("%%ddp\nprint('fresh')").text == "[0-1] fresh\n"


def test_a_flood_is_capped_and_the_kernel_stays_small(living_kernel: Kernel):
    before = living_kernel.process.memory_info().rss
    cell = living_kernel.run("%%ddp\nfor n in range(200_000): print('line', n, 'x' * 40)")
    assert cell.status == "ok"
    assert len(cell.text) < 5_000_000
    *_, folded = cell.page
    assert "left out here; the whole output:" in folded.text
    assert "line 199999" in folded.text
    assert "rank by rank" not in str(cell.messages)  # they are alike
    assert living_kernel.process.memory_info().rss - before < 150_000_000


def test_a_stop_ends_a_cell_in_the_background_and_says_so(living_kernel: Kernel):
    living_kernel.ok("%%ddp --async\nimport time\nwhile True: time.sleep(0.02)")
    living_kernel.ok("handle = _\n%ddp stop")
    error = living_kernel.run("handle.wait(10)").error
    assert "was ended by %ddp stop before ranks 0-1 had finished" in error
    assert "restart" not in error


def test_a_rank_that_the_default_pool_would_not_have(lasting_kernel: Kernel):
    lasting_kernel.ok("%ddp stop")
    cell = lasting_kernel.run("%%ddp -r 7\npass")
    assert "rank 7 is out of range" in cell.error
    assert cell.text == ""
    assert "no pool is running" in lasting_kernel.run("%ddp status").error


@pytest.mark.full
def test_a_pool_without_options_is_like_the_last_one(living_kernel: Kernel):
    living_kernel.ok("%ddp stop")
    living_kernel.ok("%ddp start -n 3  # three")
    living_kernel.ok("%ddp stop")
    cell = living_kernel.ok("%%ddp -r 2  # the last one\nprint(world_size)")
    assert "no pool was running, so one was started: 3 processes" in cell.page[0].text
    assert cell.stdout.endswith("[2]   3\n")


@pytest.mark.full
def test_a_cell_after_a_start_that_failed_starts_no_other_pool(living_kernel: Kernel):
    living_kernel.ok("%ddp stop")
    for line in (
        "%ddp start --launcher nothing",
        "%ddp start -n 2 --nope",
        "%ddp start --cwd /no/such/folder -n 1",
        "%ddp listen --nnodes 2 --address 192.0.2.77",
        "%ddp attach nosuch",
    ):
        assert living_kernel.run(line).error
        cell = living_kernel.run("%%ddp\nprint('ran')")
        assert f"no pool is running, since {line} failed; this cell ran nowhere" in cell.error
        assert cell.text == ""
    assert living_kernel.run("import nbddp; nbddp.start(2, launcher='nothing')").error
    assert "since nbddp.start failed" in living_kernel.run("%%ddp\nprint('ran')").error
    assert living_kernel.run("nbddp.attach('nosuch')").error
    after = living_kernel.run("%%ddp\nprint('ran')").error
    assert "since nbddp.attach failed" in after
    assert "or %ddp attach POOL (%ddp pools lists them)" in after
    living_kernel.ok("%ddp start -n 1")
    assert living_kernel.run("%ddp start -n 2").error  # a pool is running
    living_kernel.ok("%ddp stop")
    assert "one was started: 1 process" in living_kernel.ok("%%ddp\nprint('ran')").text


def test_an_interrupt_has_nothing_to_do_without_a_cell(living_kernel: Kernel):
    assert living_kernel.ok("%ddp interrupt").stdout == "no cell is running\n"


@pytest.mark.full
def test_a_reload_keeps_the_pool_and_leaves_nothing_in_the_end(own_kernel: Kernel, folder: Path):
    own_kernel.ok("%%ddp\nkept = rank + 40")
    own_kernel.ok("%ddp auto on -r 1")
    below = own_kernel.process.children(recursive=True)
    assert own_kernel.ok("%reload_ext nbddp").messages == []
    assert own_kernel.ok("%%ddp\nprint(kept)").lines == ["[0]   40", "[1]   41"]
    assert "as below %%ddp -r 1" in own_kernel.ok("%ddp auto").text
    assert all(process.is_running() for process in below)
    # Also in one cell with others, and again.
    own_kernel.ok("%%local\n%reload_ext nbddp\n%reload_ext nbddp\n%load_ext nbddp")
    assert own_kernel.ok("%%ddp\nprint(kept)").lines == ["[0]   40", "[1]   41"]
    own_kernel.shutdown()
    _check_gone(below, folder)


def test_an_unload_stops_the_pool(living_kernel: Kernel, lasting_folder: Path):
    below = living_kernel.process.children(recursive=True)
    assert living_kernel.ok("%unload_ext nbddp").lines == ["stopped: 2 ranks, and their variables"]
    _check_gone(below, lasting_folder)
    assert "magic function `%ddp` not found" in living_kernel.run("%ddp status").text
    living_kernel.ok("%load_ext nbddp")
    assert "no pool is running" in living_kernel.run("%ddp status").error


def _background_cell(kernel: Kernel, options: str = "", first: str = "") -> str:
    """Runs until it is ended; gives its name."""
    code = f"{first}\nimport time\nprint('inside')\nwhile True: time.sleep(0.02)"
    cell_id = kernel.execute(f"%%ddp --async {options}\n{code}")
    kernel.wait_text(cell_id, "inside")
    kernel.finish(cell_id)
    return f"cell [{kernel.cells[cell_id].number}]"


def test_an_interrupt_waits_for_the_end_of_a_cell_in_the_background(living_kernel: Kernel):
    name = _background_cell(living_kernel)
    living_kernel.ok("handle = _")
    said = living_kernel.ok("%ddp interrupt").stdout
    assert re.fullmatch(rf"{re.escape(name)} was interrupted after [\d.]+ s\n", said)
    living_kernel.wait_for(lambda: living_kernel.value("handle.is_done") == "True")
    assert ": interrupted after" in living_kernel.value("repr(handle)")


@pytest.mark.full
def test_a_background_cell_that_ignores_an_interrupt():
    with running_kernel(NBDDP_INTERRUPT_WAIT_S="0.2") as kernel:
        kernel.ok("%load_ext nbddp")
        deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
        name = _background_cell(kernel, "-r 1", deaf)
        assert kernel.ok("%ddp interrupt").stdout == with_line_breaks(
            f"{name} was sent an interrupt and has not ended yet: rank 1 is still inside it. "
            "Next: %ddp stacks shows where each rank is\n"
        )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("restart -r 1", "rank 1 is a fresh process"),
        ("restart", "fresh ranks: 2 ranks"),
        pytest.param("stop", "stopped: 2 ranks", marks=pytest.mark.full),
    ],
)
def test_a_command_that_ends_a_background_cell_says_so(
    living_kernel: Kernel, command: str, said: str
):
    name = _background_cell(living_kernel)
    lines = [line for line in living_kernel.ok(f"%ddp {command}").lines if not line.startswith("[")]
    assert lines[0] == f"{name} was running, and was ended on ranks 0-1"
    assert lines[1].startswith(said)


def test_a_rank_cannot_be_replaced_beside_a_cell_in_the_background(living_kernel: Kernel):
    name = _background_cell(living_kernel, "-r 0")
    error = living_kernel.run("%ddp restart -r 1").error
    assert f"{name} is still running on rank 0, and this has to wait" in error
    assert living_kernel.ok("%ddp interrupt").stdout.startswith(f"{name} was interrupted after")
    assert living_kernel.ok("%ddp restart -r 1").stdout.startswith("rank 1 is a fresh process")
