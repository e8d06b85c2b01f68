"""`nbddp console`: a terminal on one rank of the pool of a notebook."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from nbddp.cli import console
from nbddp.errors import NoPoolError
from nbddp.settings import POOLS_DIR_ENV
from tests.support.kernel import Kernel, plain, running_kernel


@pytest.fixture(scope="module")
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="nbk-", dir="/tmp") as name:
        yield name


@pytest.fixture(scope="module")
def own(folder: str) -> Iterator[Kernel]:
    with running_kernel(TMPDIR=folder) as kernel:
        kernel.ok("%load_ext nbddp")
        kernel.ok("%ddp start -n 2")
        kernel.ok("%%ddp\nsecret = f'of rank {rank}'")
        yield kernel


@pytest.fixture
def terminal(own: Kernel, folder: str) -> Iterator["pexpect.spawn[str]"]:
    spawned = pexpect.spawn(
        sys.executable,
        ["-m", "nbddp", "console", "-r", "1"],
        timeout=20,
        use_poll=True,  # other tests of this process may have more descriptors than select() takes
        encoding="utf8",
        env={**os.environ, POOLS_DIR_ENV: folder, "TERM": "dumb"},
    )
    spawned.expect(r"rank 1 of 2, nbddp-\w+, kernel \d+ in ")
    spawned.expect(r"\[1\] In: ")
    yield spawned
    spawned.close(force=True)


def test_cells_run_on_the_rank(own: Kernel, terminal: "pexpect.spawn[str]"):
    terminal.sendline("secret")
    terminal.expect(r"\[1\]   Out: 'of rank 1'")
    terminal.expect(r"\[1\] In: ")
    terminal.sendline("for i in range(2):")
    terminal.expect(r"\.\.\.: ")
    terminal.sendline("    print('line', i)")
    terminal.sendline("")
    terminal.expect(r"\[1\]   line 0\s+\[1\]   line 1")
    terminal.expect(r"\[1\] In: ")
    terminal.sendline("def fail(): 1 / 0")
    terminal.sendline("")
    terminal.expect(r"\[1\] In: ")
    terminal.sendline("fail()")
    # It has no number: the next one is that of a cell of the notebook.
    terminal.expect("CellError")
    assert plain(terminal.before or "").count("Console cell, line 1") == 2
    terminal.expect(r"\[1\] In: ")
    terminal.sendline("1 +* 1")
    terminal.expect("SyntaxError")
    assert "Console cell, line 1" in plain(terminal.before or ""), terminal.before
    terminal.expect(r"\[1\] In: ")
    terminal.sendline("answer = input('who? ')")
    terminal.expect(r"\[1\]   who\? ")
    terminal.sendline("me")
    terminal.expect(r"\[1\] In: ")
    terminal.sendline("exit")
    terminal.expect(pexpect.EOF)
    assert own.ok("%%ddp -r 1\nprint(answer)").lines == ["[1]   me"]


def test_ctrl_c_ends_the_cell_and_not_the_terminal(own: Kernel, terminal: "pexpect.spawn[str]"):
    terminal.sendline("while not print('be' 'gun'):")
    terminal.sendline("    while True: pass")
    terminal.sendline("")
    terminal.expect(r"\[1\]   begun")
    terminal.sendintr()
    terminal.expect("CellInterruptedError.*: console cell was interrupted")
    terminal.expect(r"\[1\] In: ")
    terminal.sendeof()
    terminal.expect(pexpect.EOF)
    assert own.ok("%%ddp\nprint(rank)").status == "ok"


@pytest.mark.full
def test_a_rank_is_chosen_by_mesh(own: Kernel, folder: str):
    own.ok(
        "%%ddp\nfrom torch.distributed.device_mesh import init_device_mesh\n"
        "grid = init_device_mesh('cpu', (2, 1), mesh_dim_names=('dp', 'tp'))"
    )
    command = [sys.executable, "-m", "nbddp", "console", "-r"]
    environment = {**os.environ, POOLS_DIR_ENV: folder, "TERM": "dumb"}

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*command, *words], env=environment, input="rank * 10\nexit\n", text=True,
            capture_output=True, check=False, timeout=60,
        )  # fmt: skip

    assert "[1]   Out: 10" in run("dp=1").stdout
    assert "[0]   Out: 0" in run("dp=0,tp=0", "--mesh", "grid").stdout
    wrong = run("pp=0")
    assert wrong.returncode == 1
    assert "no DeviceMesh has the dimension pp; legal: grid (dp=0 to dp=1" in wrong.stderr
    assert "'tp=0' chooses ranks 0-1, and a console is on one rank" in run("tp=0").stderr
    own.ok("%%ddp\ndel grid")


HUNG = """%%ddp
import time
from pathlib import Path

def step(kept):
    local = kept * 2
    while rank == 0 and not Path({path!r}).exists():
        time.sleep(0.01)
    dist.all_reduce(local)
    return local

losses = [0.5, 0.25]
print(step(torch.ones(3)))"""


def test_a_rank_that_waits_in_a_collective_is_looked_at(
    own: Kernel, terminal: "pexpect.spawn[str]", tmp_path: Path
):
    gate = tmp_path / "gate"
    msg_id = own.execute(HUNG.format(path=str(gate)))
    try:
        own.wait_text(msg_id, "waits in all_reduce for rank 0")
        for typed, answers in [
            ("losses[-1]", [r"0\.25"]),
            ("kept", [r"Tensor  float32 \(3,\)  1, 1, 1"]),
            ("local.shape[0]", ["3"]),
            ("lossses", ["NameError: name 'lossses' is not defined"]),
            ("%ddp vars", [r"losses = \[0\.5, 0\.25\]"]),
            ("%ddp status", ["2 ranks", "waits"]),
            ("%ddp stacks", ["rank 0: ", "rank 1: has waited in all_reduce #1"]),
            ("%ddp diagnose", ["Notice: rank 1 waits in all_reduce for rank 0"]),
            (
                "local.sum()",
                [
                    r"rank 1 is busy: has waited in all_reduce #1 for [\d.]+ m?s",
                    r"cell \[\d+\], line 9, in step  dist\.all_reduce\(local\)",
                    "[Rr]ank 1 waits in all_reduce for rank 0",
                    "Nothing was run.* a name with attributes and items",
                ],
            ),
        ]:
            terminal.sendline(typed)
            for answer in answers:
                terminal.expect(answer)
            terminal.expect(r"\[1\] In: ")
    finally:
        gate.touch()
    assert own.finish(msg_id).lines == ["[0-1] tensor([4., 4., 4.])"]
    terminal.sendline("losses + [rank]")  # it runs again
    terminal.expect(r"Out: \[0\.5, 0\.25, 1\]")


def test_a_cell_of_the_notebook_itself_is_waited_for(
    own: Kernel, terminal: "pexpect.spawn[str]", tmp_path: Path
):
    gate = tmp_path / "gate"
    msg_id = own.execute(
        f"import os\nprint('begun')\nwhile not os.path.exists({str(gate)!r}): pass"
    )
    try:
        own.wait_text(msg_id, "begun")
        terminal.sendline("rank + 10")
        terminal.expect("your cell waits for a cell of the notebook, and runs after it")
    finally:
        gate.touch()
    own.finish(msg_id)
    terminal.expect("Out: 11")


def test_a_terminal_starts_no_pool(own: Kernel, terminal: "pexpect.spawn[str]"):
    own.ok("%ddp stop")
    terminal.sendline("rank")
    terminal.expect(r"NoPoolError\S*: no pool is running\. Next: %ddp start -n 2")
    terminal.expect(r"\[1\] In: ")
    terminal.sendline("%ddp start -n 2")
    terminal.expect(r"2 processes \(ranks 0-1\) on")
    terminal.expect(r"\[1\] In: ")
    terminal.sendline("rank")
    terminal.expect(r"\[1\]   Out: 1")
    terminal.expect(r"\[1\] In: ")


def test_pools_are_found_by_what_they_leave_and_only_while_they_live(
    own: Kernel, folder: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(POOLS_DIR_ENV, folder)
    (found,) = console.find_pools()
    assert (found.world_size, found.pid) == (2, own.process.pid)
    assert Path(found.connection_file).stat().st_mode & 0o077 == 0
    assert Path(folder, found.name).stat().st_mode & 0o077 == 0
    assert console.choose(found.name[-4:]) == found
    with pytest.raises(NoPoolError, match="no pool is called elsewhere"):
        console.choose("elsewhere")
    own.ok("%ddp stop")
    with pytest.raises(NoPoolError, match="none of your notebooks has a pool"):
        console.choose("")


@pytest.mark.full
def test_the_pool_of_a_script_is_named_and_cannot_be_entered(monkeypatch: pytest.MonkeyPatch):
    with tempfile.TemporaryDirectory(prefix="nbk-", dir="/tmp") as own:
        monkeypatch.setenv(POOLS_DIR_ENV, own)
        code = "import nbddp\npool = nbddp.start(1)\nprint('ready', flush=True)\ninput()"
        with subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, POOLS_DIR_ENV: own},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as script:
            assert script.stdout is not None
            assert script.stdout.readline() == "ready\n"
            process = rf"1 ranks, process {script.pid}, in "
            words = rf"has no kernel to connect to: nbddp-\w+ \({process}.*Next: .*jupyter console"
            with pytest.raises(NoPoolError, match=words):
                console.choose("")
            script.communicate("\n", timeout=30)
