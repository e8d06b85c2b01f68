"""Limited environments: the pool works, or a message says what is missing and what to do."""

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import RankExitedError
from tests.support.views import run_cell

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits as Linux has them")

SCRIPT = """
import sys
import nbddp
try:
    with nbddp.start(2) as pool:
        pool.run("import tempfile, os")
        pool.run("dist.barrier()")
        pool.run("print('x' * 400_000)")
        pool.push(value=b"v" * 3_000_000)
        print([len(each) for each in pool.pull("value")], pool.pull("rank"))
except nbddp.NbddpError as error:
    print(type(error).__name__, error)
"""
WORKS = "[3000000, 3000000] [0, 1]\n"


def told(
    tmp_path: Path, *, limit: tuple[int, int] | None = None, mounts: str = "", **env: str
) -> str:
    """The output of a script with a pool, under a limit or in its own mount namespace."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script)]
    if mounts:
        _need_mounts()
        command = ["unshare", "-m", "sh", "-ec", f'{mounts}\nexec "$0" "$@"', *command]

    def lower() -> None:
        if limit is not None:
            resource.setrlimit(limit[0], (limit[1], limit[1]))

    import os

    found = subprocess.run(
        command,
        preexec_fn=lower,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert "Traceback" not in found.stderr, found.stderr
    return found.stdout[-3000:] if not found.stdout.endswith(WORKS) else WORKS


def _need_mounts() -> None:
    unshare = shutil.which("unshare")
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    if unshare is None or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("mounts need a privileged user")


def test_few_descriptors_are_told_before_anything_is_started(tmp_path: Path):
    text = told(tmp_path, limit=(resource.RLIMIT_NOFILE, 40))
    assert text.startswith("PoolStartError the pool did not start: a process may open 40 files")
    assert "Next: `ulimit -n 1024` in the shell that starts Jupyter, or fewer ranks" in text


@pytest.mark.full
def test_enough_descriptors_are_enough(tmp_path: Path):
    assert told(tmp_path, limit=(resource.RLIMIT_NOFILE, 64)) == WORKS


@pytest.mark.full
def test_small_files(tmp_path: Path):
    text = told(tmp_path, limit=(resource.RLIMIT_FSIZE, 100 * 1024))
    assert text.startswith("PoolStartError the pool did not start: rank 0 could not start: OSError")
    assert "Next: files may have 102,400 bytes only (`ulimit -f`)" in text


def test_a_full_disk_holds_no_cell_up(tmp_path: Path):
    folder = tmp_path / "full"
    folder.mkdir()
    fill = f"dd if=/dev/zero of={folder}/filler bs=1k count=1000 2>/dev/null || true"
    mounts = f"mount -t tmpfs -o size=256k tmpfs {folder}\n{fill}"
    assert told(tmp_path, mounts=mounts, TMPDIR=str(folder)) == WORKS


def test_a_tiny_dev_shm(tmp_path: Path):
    assert told(tmp_path, mounts="mount -t tmpfs -o size=4k tmpfs /dev/shm") == WORKS


@pytest.mark.full
def test_a_home_that_cannot_be_written_to(tmp_path: Path):
    home = tmp_path / "home"
    home.mkdir()
    mounts = f"mount -t tmpfs -o ro tmpfs {home}"
    assert told(tmp_path, mounts=mounts, HOME=str(home)) == WORKS


def test_a_temporary_folder_that_cannot_be_written_to(tmp_path: Path):
    folder = tmp_path / "ro"
    folder.mkdir()
    mounts = f"mount -t tmpfs -o ro tmpfs {folder}"
    # Python takes another one then.
    assert told(tmp_path, mounts=mounts, TMPDIR=str(folder)) == WORKS


# --- cells ---------------------------------------------------------------------------------------


def failed(pool: Pool, code: str) -> str:
    view = run_cell(pool, code, timeout=30, check=False)
    assert view.error is not None
    return str(view.error)


_TRANSFORMER = """
def bad(lines):
    raise RuntimeError("a transformer")
get_ipython().input_transformers_cleanup.append(bad)
"""


@pytest.mark.fresh_ranks
def test_a_transformer_that_raises(pool: Pool):
    run_cell(pool, "kept = rank")
    run_cell(pool, _TRANSFORMER, ranks=[1])
    for code in ("print(1)", "await asyncio.sleep(0)"):
        text = failed(pool, code)
        assert "RuntimeError: a transformer" in text
        assert "no cell can run" in text
        assert "Next: %ddp restart -r RANKS" in text
    pool.restart(ranks=[1])
    run_cell(pool, "dist.barrier()")
    assert pool.pull("kept", ranks=0) == 0


@pytest.mark.parametrize("event", ["pre_run_cell", "post_run_cell", "pre_execute", "post_execute"])
def test_a_hook_that_raises_is_told_with_the_way_to_remove_it(pool: Pool, event: str):
    run_cell(
        pool,
        f"""
def bad(*info):
    raise RuntimeError("a hook")
get_ipython().events.register({event!r}, bad)
""",
        check=False,
    )
    text = failed(pool, "print(1)")
    way_out = f"get_ipython().events.callbacks['{event}'].clear()"
    assert "RuntimeError: a hook" in text
    assert f"({event}), not by the cell" in text
    assert way_out in text
    run_cell(pool, way_out, check=False)
    run_cell(pool, "del bad")


def test_an_error_of_the_cell_is_not_taken_for_one_of_a_hook(pool: Pool):
    for code in ("1 / 0", "def f(:", "%nomagic", "get_ipython().run_cell('1/0').raise_error()"):
        assert "Raised by" not in failed(pool, code)


_OVERFLOW = """
import sys
sys.setrecursionlimit(10**9)
class Deep:
    def __getattr__(self, name):
        return getattr(self, name)
if rank == 1:
    Deep().x
dist.barrier()
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python raises RecursionError before")
@pytest.mark.fresh_ranks
def test_an_overflow_of_the_stack_is_told_as_that(pool: Pool):
    view = run_cell(pool, _OVERFLOW, timeout=30, check=False)
    assert isinstance(view.error, RankExitedError)
    assert "likely    the stack overflowed" in str(view.error)
    assert "in __getattr__" in str(view.error)
    run_cell(pool, "dist.barrier()")


@pytest.mark.fresh_ranks
def test_a_cell_that_closes_all_descriptors(pool: Pool):
    code = "import os\nif rank == 1:\n    os.closerange(3, 1000)\ndist.barrier()"
    view = run_cell(pool, code, timeout=30, check=False)
    assert isinstance(view.error, RankExitedError)
    assert "likely    the cell closed descriptors" in str(view.error)
    run_cell(pool, "dist.barrier()")
