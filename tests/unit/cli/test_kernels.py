"""``nbddp kernel``: what it writes, where Jupyter looks."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nbddp import cli
from nbddp.controller.options import LINE_OPTIONS
from nbddp.notebook.magics.verbs import VERBS


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place in which Jupyter finds kernels that are not there anyway."""
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share" / "jupyter"))
    return tmp_path


def install(prefix: Path, *words: str) -> int:
    return cli.main(["kernel", "install", "--prefix", str(prefix), *words])


def read(prefix: Path, name: str) -> dict[str, object]:
    path = prefix / "share" / "jupyter" / "kernels" / name / "kernel.json"
    found: dict[str, object] = json.loads(path.read_text())
    return found


def test_install_list_remove(prefix: Path, capsys: pytest.CaptureFixture[str]):
    assert install(prefix, "-n", "4") == 0
    said = capsys.readouterr().out
    assert said.startswith(f'installed "Python (nbddp, 4 ranks)" in {prefix}')
    assert "jupyter console --kernel nbddp-4" in said
    assert cli.main(["kernel", "list"]) == 0
    assert "nbddp-4  Python (nbddp, 4 ranks)" in capsys.readouterr().out
    assert cli.main(["kernel", "remove", "nbddp-4"]) == 0
    assert 'removed "Python (nbddp, 4 ranks)"' in capsys.readouterr().out
    assert not list(prefix.glob("share/jupyter/kernels/*"))


def test_every_option_of_a_pool_is_one_of_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        cli.main(["kernel", "install", "--help"])
    said = capsys.readouterr().out
    for option in LINE_OPTIONS.values():
        assert option.flags[-1] in said
        assert option.help in said


def test_a_folder_is_taken_from_the_shell_and_unnamed_threads_from_the_kernel(
    prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    install(prefix, "--cwd", "data", "--env", "A=b c", "--name", "here")
    pool = json.dumps(read(prefix, "here")["argv"])
    assert f"--NbddpKernel.pool=-n 2 --env 'A=b c' --cwd {tmp_path / 'data'}" in pool


def test_the_options_are_those_of_start(prefix: Path):
    install(prefix, "-n", "1", "--nnodes", "2", "--backend", "gloo", "--plain", "--name", "Mine")
    found = read(prefix, "mine")
    assert found["display_name"] == "Python (nbddp, 2 ranks)"
    assert found["language"] == "python"
    argv = found["argv"]
    assert isinstance(argv, list)
    pool = argv[-1].removeprefix("--NbddpKernel.pool=")
    assert vars(VERBS["start"].parser.read(pool)) == {
        "nproc_per_node": 1,
        "nnodes": 2,
        "backend": "gloo",
        "plain": True,
    }


def test_a_kernel_of_a_cluster_reads_its_table_at_each_start(
    prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("NBDDP_CONFIG_DIR", str(tmp_path))
    (tmp_path / "clusters.toml").write_text("[lab]\nnproc_per_node = 3\n")
    install(prefix, "--cluster", "lab", "--threads", "2")
    found = read(prefix, "nbddp-lab")
    assert found["display_name"] == "Python (nbddp, lab)"
    assert "--NbddpKernel.pool=--threads 2 --cluster lab" in json.dumps(found["argv"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-n", "0"], "nproc_per_node (-n)"),
        (["--device", "tpu"], "device"),
        (["--name", "two words"], "Invalid kernel name"),
        (["--name", "python3"], "a kernel that is not an nbddp kernel has this name"),
    ],
)
def test_illegal_options_install_nothing(
    prefix: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
):
    assert install(prefix, *words) == 1
    assert said in capsys.readouterr().err
    assert not list(prefix.glob("share/jupyter/kernels/*"))


def test_remove_asks_which_one(prefix: Path, capsys: pytest.CaptureFixture[str]):
    install(prefix, "-n", "2", "--name", "first")
    install(prefix, "-n", "3", "--name", "second")
    assert cli.main(["kernel", "remove"]) == 1
    assert "a name is missing. Legal: first, second" in capsys.readouterr().err
    assert cli.main(["kernel", "remove", "python3"]) == 1
    assert "'python3' is not an nbddp kernel. Legal: first, second" in capsys.readouterr().err
    cli.main(["kernel", "remove", "first"])
    assert cli.main(["kernel", "remove"]) == 1  # also if only one is left
    assert "a name is missing. Legal: second" in capsys.readouterr().err
    assert cli.main(["kernel", "remove", "second"]) == 0
    assert cli.main(["kernel", "remove", "second"]) == 1
    assert "'second' is not an nbddp kernel. None is installed." in capsys.readouterr().err


def test_a_call_without_a_command_lists_the_commands(capsys: pytest.CaptureFixture[str]):
    assert cli.main([]) == 0
    assert "kernel" in capsys.readouterr().out
    assert cli.main(["kernel"]) == 0
    assert "install" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bogus"], "'?kernel'?, '?console"),
        (["kernel", "bogus"], "'?install'?, '?list'?, '?remove"),
    ],
)
def test_an_unknown_command_is_told_with_the_legal_ones(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit):
        cli.main(words)
    said = rf"argument COMMAND: invalid choice: 'bogus' \(choose from {said}"
    assert re.search(said, capsys.readouterr().err)


def test_the_package_is_the_command():
    found = subprocess.run(
        [sys.executable, "-m", "nbddp", "kernel"], capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith("usage: nbddp kernel")


def test_hosts_of_a_file_are_written_as_names(prefix: Path):
    (prefix / "hosts").write_text("n1 slots=3\nn2 slots=3\n")
    words = ("--launcher", "ssh", "--hostfile", str(prefix / "hosts"), "--name", "lab")
    assert install(prefix, *words) == 0
    metadata = read(prefix, "lab")["metadata"]
    assert isinstance(metadata, dict)
    assert metadata["nbddp"]["pool"] == "-n 3 --launcher ssh --hosts n1,n2"
