"""Named clusters: tables of options in a file of the user; options that are given win."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import pytest

import nbddp
from nbddp.controller.options import PoolOptions, cluster_names, clusters_file
from nbddp.controller.pool import Pool
from nbddp.errors import BadOptionError
from nbddp.notebook import session
from nbddp.notebook.magics import pool_verbs
from nbddp.notebook.magics.verbs import VERBS
from nbddp.notebook.render import status_table

Write: TypeAlias = Callable[[str], Path]

TABLES = """
[lab]
launcher = "ssh"
hosts = ["a", "b"]
nproc_per_node = 4
tunnel = true
env = { NCCL_DEBUG = "INFO" }

[gpu4]
launcher = "slurm"
nnodes = 2
slurm = "--partition=gpu --time=10"
timeout = 30
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write the file of clusters."""
    monkeypatch.setenv("NBDDP_CONFIG_DIR", str(tmp_path))

    def to_file(text: str) -> Path:
        (tmp_path / "clusters.toml").write_text(text)
        return tmp_path / "clusters.toml"

    return to_file


@pytest.mark.parametrize(
    ("variables", "path"),
    [
        ({"NBDDP_CONFIG_DIR": "/a", "XDG_CONFIG_HOME": "/b"}, "/a/clusters.toml"),
        ({"NBDDP_CONFIG_DIR": "", "XDG_CONFIG_HOME": "/b"}, "/b/nbddp/clusters.toml"),
        ({"XDG_CONFIG_HOME": ""}, "/home/u/.config/nbddp/clusters.toml"),
        ({}, "/home/u/.config/nbddp/clusters.toml"),
    ],
)
def test_the_place_of_the_file(
    variables: dict[str, str], path: str, monkeypatch: pytest.MonkeyPatch
):
    for name in ("NBDDP_CONFIG_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": "/home/u"} | variables).items():
        monkeypatch.setenv(name, value)
    assert str(clusters_file()) == path


def test_a_cluster_gives_options_and_those_that_are_given_win(write: Write):
    write(TABLES)
    assert PoolOptions.checked(cluster="lab") == PoolOptions.checked(
        4,
        launcher="ssh",
        hosts=["a", "b"],
        tunnel=True,
        env={"NCCL_DEBUG": "INFO"},
        cluster="lab",
        nnodes=2,
    )
    assert PoolOptions.checked(1, cluster="lab", hosts=["c"]).hosts == ("c",)
    assert PoolOptions.checked(1, cluster="lab", hosts=["c"]).world_size == 1
    assert (
        PoolOptions.checked(cluster="gpu4", nnodes=3).describe()
        == "-n 2 --nnodes 3 --timeout 30.0 --cluster gpu4 --launcher slurm "
        "--slurm --partition=gpu --time=10"
    )


def test_start_knows_which_arguments_were_given(write: Write, monkeypatch: pytest.MonkeyPatch):
    write(TABLES)
    started: list[PoolOptions] = []

    def note(options: PoolOptions, *_: object) -> SimpleNamespace:
        started.append(options)
        return SimpleNamespace(options=options, is_stopped=True)

    monkeypatch.setattr(session, "_current", None)
    monkeypatch.setattr(session, "_start", note)
    nbddp.start(cluster="lab")
    nbddp.start(2, cluster="lab", device="cpu")
    nbddp.start()
    assert [(made.nproc_per_node, made.device) for made in started] == [
        (4, "auto"),
        (2, "cpu"),
        (2, "auto"),
    ]


def test_a_list_may_be_written_as_on_the_line(write: Write):
    write('[lab]\nlauncher = "ssh"\nhosts = "a,b"\n')
    assert PoolOptions.checked(cluster="lab").hosts == ("a", "b")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TABLES, "--cluster lad: {file} has no table of this name. Did you mean lab? Legal: lab"),
        ("", "--cluster lad: there is no cluster in {file}. Next: write the options of %ddp start"),
        ("[lad\n", "{file} is not a file of TOML: Expected ']'"),
        ("lad = 3\n", "[lad] in {file} is no table; legal: a line [lad], and options below it"),
        (
            "[lad]\nnproc-per-node = 3\n",
            "[lad] in {file}: there is no option 'nproc-per-node'. Did you mean nproc_per_node? "
            "Legal: nproc_per_node, nnodes, backend",
        ),
        ("[lad]\npartition = 3\n", "there is no option 'partition'; legal: nproc_per_node"),
        ("[lad]\ncluster = 'lad'\n", "there is no option 'cluster'; legal: nproc_per_node"),
        ("[lad]\nnnodes = 'x'\n", "[lad] in {file}: nnodes: 'x' is not a whole number"),
        ("[lad]\nnnodes = true\n", "nnodes is True; legal: a value such as M"),
        ("[lad]\nnnodes = 2000\n", "nnodes is 2000; legal: a whole number from 1 to 1024"),
        ("[lad]\ntunnel = 'yes'\n", "tunnel is 'yes'; legal: true or false"),
        ("[lad]\nenv = ['A=1']\n", "env is ['A=1']; legal: a table of texts"),
        ("[lad]\nslurm = ['-p', 'gpu']\n", "slurm is ['-p', 'gpu']; legal: a value such as OPT"),
        (
            "[lad]\nhosts = ['a']\n",
            "with [lad] in {file}: --hosts or --hostfile goes with --launcher ssh, and there is no "
            'launcher. Next: add launcher = "ssh"',
        ),
        ("[lad]\nhosts = 3\n", "[lad] in {file}: hosts is 3; legal: names, such as ["),
        (
            "[lad]\nlauncher = 'ssh'\n",
            "with [lad] in {file}: --launcher ssh needs a host for each node",
        ),
    ],
)
def test_what_is_refused(write: Write, text: str, words: str):
    path = write(text)
    with pytest.raises(BadOptionError) as caught:
        PoolOptions.checked(cluster="lad")
    assert words.format(file=path) in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NBDDP_CONFIG_DIR", str(tmp_path))
    assert cluster_names() == []
    (tmp_path / "clusters.toml").mkdir()
    with pytest.raises(BadOptionError, match="cannot be read: Is a directory"):
        PoolOptions.checked(cluster="lab")


def test_tab_offers_the_names(write: Write):
    write(TABLES)
    assert VERBS["start"].parser.completions(["--cluster"]) == ["lab", "gpu4"]


def test_the_list_of_clusters(write: Write, capsys: pytest.CaptureFixture[str]):
    path = write(TABLES)
    pool_verbs.list_clusters(cast("Any", None))
    assert capsys.readouterr().out == (
        "lab   --launcher ssh --hosts a,b -n 4 --tunnel --env NCCL_DEBUG=INFO\n"
        "gpu4  --launcher slurm --nnodes 2 --slurm '--partition=gpu --time=10' --timeout 30.0\n"
        f"2 clusters in {path}. Next: %ddp start --cluster lab\n"
    )
    path.unlink()
    pool_verbs.list_clusters(cast("Any", None))
    assert capsys.readouterr().out == f"no cluster in {path}\n"


GOOD = """
[lab]
launcher = "ssh"
hosts = ["a", "b"]

[lab.env]
A = "1"
"""


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (
            "[bad]\nnprocs = 2\n",
            "[bad] in {file}: there is no option 'nprocs'; legal: nproc_per_node",
        ),
        (
            "[bad]\nnnodes = 2\nlauncher = ssh\n",
            "[bad] in {file} is not TOML: Invalid value (at line 11, column 12); legal: lines such "
            "as nnodes = 2, launcher",
        ),
        (
            "[bad]\nnnodes = 2\n[bad]\nnnodes = 3\n",
            "[bad] in {file} is not TOML: its name stands there twice (again at line 11); legal: ",
        ),
        (
            "[bad]\nnnodes = 2\n[bad]\nthreads = 3\n",
            "[bad] in {file} is not TOML: its name stands there twice (again at line 11); legal: ",
        ),
        (
            "[bad]\nlauncher = 'slrum'\n",
            "with [bad] in {file}: launcher is 'slrum'; legal: local, ssh, slurm",
        ),
        (
            "[bad]\nlauncher = 'ssh'\nhosts = ['a:2', 'b:3']\n",
            "with [bad] in {file}: --hosts a:2,b:3: all nodes of a pool have the same number",
        ),
        ("bad = 2\n", None),  # belongs to [lab.env]
    ],
)
def test_a_bad_table_hides_no_other(
    write: Write, capsys: pytest.CaptureFixture[str], bad: str, words: str | None
):
    path = write(f"{GOOD}\n{bad}\n[last]\nnproc_per_node = 1\n")
    pool_verbs.list_clusters(cast("Any", None))
    shown = " ".join(capsys.readouterr().out.split())
    if words is None:
        assert "env is {'A': '1', 'bad': 2}; legal: a table of texts" in shown
    else:
        assert shown.startswith("lab --launcher ssh --hosts a,b --env A=1 last -n 1 2 clusters in ")
        assert " ".join(words.format(file=path).split()) in shown
        with pytest.raises(BadOptionError) as caught:
            PoolOptions.checked(cluster="bad")
        assert words.format(file=path) in str(caught.value)
        assert PoolOptions.checked(cluster="lab").hosts == ("a", "b")
    assert f"in {path}. Next: %ddp start --cluster" in shown
    assert PoolOptions.checked(cluster="last").nproc_per_node == 1


def test_a_file_with_a_bad_table_only(write: Write, capsys: pytest.CaptureFixture[str]):
    path = write("[three]\nhosts = ['a']\n")
    pool_verbs.list_clusters(cast("Any", None))
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith(f"no cluster that %ddp start can take in {path} not a cluster")
    assert shown.endswith('Next: add launcher = "ssh"')


def test_a_line_without_a_table_hides_no_table(write: Write, capsys: pytest.CaptureFixture[str]):
    path = write("nonsense\n[lab]\nnproc_per_node = 3\n[big\nnproc_per_node = 8\n")
    pool_verbs.list_clusters(cast("Any", None))
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Next: %ddp start --cluster lab lines of no cluster: {path} is not a file" in shown
    assert "Expected '=' after a key in a key/value pair (at line 1, column 9)" in shown
    assert "; Expected ']' at the end of a table declaration (at line 4, column 5)" in shown
    assert cluster_names() == ["lab"]
    assert PoolOptions.checked(cluster="lab").nproc_per_node == 3
    with pytest.raises(BadOptionError) as caught:
        PoolOptions.checked(cluster="lad")
    assert f"{path} is not a file of TOML: Expected '='" in str(caught.value)
    path.write_text("[lab\n")
    with pytest.raises(BadOptionError, match=r"is not a file of TOML: Expected '\]'"):
        cluster_names()


def test_the_start_says_which_cluster_was_taken(write: Write):
    write("[Lab2]\nnproc_per_node = 2\n")
    options = PoolOptions.checked(cluster="Lab2")
    pool = cast("Pool", SimpleNamespace(options=options, world_size=2, ranks=list, job_ends=list))
    assert status_table.introduction(pool, every_cell=False).startswith("Cluster Lab2: 2 processes")
    assert status_table.headline(pool).startswith("cluster Lab2: 2 ranks on ")
