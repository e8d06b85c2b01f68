"""Hosts with slots, as in Open MPI and pdsh-like tools, mean the ranks of each node."""

from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from nbddp.controller.options import PoolOptions
from nbddp.controller.options.host_slots import hosts_of_file
from nbddp.errors import BadOptionError
from nbddp.notebook.magics.verbs import VERBS


@pytest.mark.parametrize("ranks", [None, 4])
def test_equal_slots_are_the_ranks_of_each_node(ranks: int | None):
    options = PoolOptions.checked(ranks, launcher="ssh", hosts=["a:4", "u@b:4"])
    assert (options.hosts, options.nproc_per_node, options.nnodes) == (("a", "u@b"), 4, 2)
    assert options.describe() == "-n 4 --nnodes 2 --launcher ssh --hosts a,u@b"


@pytest.mark.parametrize("hosts", ["a:4,b:4", "a:4, b:4", ("a:4", "b:4")])
def test_a_text_is_split_as_on_the_command_line(hosts: object):
    options = PoolOptions.checked(launcher="ssh", hosts=hosts)
    assert (options.hosts, options.nproc_per_node, options.nnodes) == (("a", "b"), 4, 2)


@pytest.mark.parametrize("hosts", [3, "a,,b", "", [1, 2], ["a", ""]])
def test_hosts_that_are_no_names(hosts: object):
    with pytest.raises(BadOptionError) as caught:
        PoolOptions.checked(launcher="ssh", hosts=hosts)
    assert str(caught.value) == f'hosts is {hosts!r}; legal: names, such as ["a", "b"] or "a,b"'


@pytest.mark.parametrize("line", ["n1:2 slots=3", "fe80::1 slots=3"])
def test_a_line_of_a_file_has_the_ranks_once(tmp_path: Path, line: str):
    (tmp_path / "hosts").write_text(f"n0\n{line}\n")
    with pytest.raises(ArgumentTypeError, match=rf"line 2 of .* is '{line}'; legal: "):
        hosts_of_file(str(tmp_path / "hosts"))


@pytest.mark.parametrize("hosts", [["a", "b"], ["fe80::1", "::2", "u@fe80::1%eth0"]])
def test_other_hosts_stay_as_they_are(hosts: list[str]):
    options = PoolOptions.checked(3, launcher="ssh", hosts=hosts)
    assert (options.hosts, options.nproc_per_node) == (tuple(hosts), 3)


@pytest.mark.parametrize(
    ("ranks", "hosts", "text"),
    [
        (
            None,
            ["a:4", "b:2"],
            "--hosts a:4,b:2: all nodes of a pool have the same number of ranks; legal: one number "
            "behind all hosts, or none and -n, such as --hosts a,b -n 2",
        ),
        (None, ["a:4", "b"], "such as --hosts a,b -n 1"),
        (
            2,
            ["a:4", "b:4"],
            "a:4,b:4 means 4 ranks on each node, and -n is 2. Next: leave out one of the two",
        ),
        (2, ["a:1", "b:1"], "a:1,b:1 means 1 rank on each node, and -n is 2."),
        (
            None,
            ["a:x", "b:x"],
            "--hosts a:x,b:x: behind the colon stands the number of ranks, and 'x' is no number; "
            "legal: a:4, or a alone",
        ),
        (
            None,
            ["a:2", ":2"],
            "--hosts a:2,:2: no name stands before the colon of ':2'; legal: HOST:2, or HOST alone",
        ),
        (
            None,
            ["n1:2:3"],
            "--hosts n1:2:3: 'n1:2:3' has two colons and is no IPv6 address; legal: n1:4, or n1 "
            "alone",
        ),
        (None, ["a:0"], "nproc_per_node (-n) is 0; legal: "),
    ],
)
def test_slots_that_no_pool_can_have(ranks: int | None, hosts: list[str], text: str):
    with pytest.raises(BadOptionError) as caught:
        PoolOptions.checked(ranks, launcher="ssh", hosts=hosts)
    assert text in str(caught.value)


def test_a_cluster_may_name_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NBDDP_CONFIG_DIR", str(tmp_path))
    (tmp_path / "hosts").write_text("n1 slots=2 max_slots=8\nn2:2\n")
    table = f'[lab]\nlauncher = "ssh"\nhostfile = "{tmp_path}/hosts"\n'
    (tmp_path / "clusters.toml").write_text(table)
    options = PoolOptions.checked(cluster="lab")
    assert (options.hosts, options.nproc_per_node) == (("n1", "n2"), 2)
    assert PoolOptions.checked(3, cluster="lab").nproc_per_node == 3
    assert PoolOptions.checked(cluster="lab", hosts=["c:5"]).nproc_per_node == 5
    (tmp_path / "clusters.toml").write_text(f'{table}hosts = ["a"]\n')
    with pytest.raises(BadOptionError, match=r"\[lab\] .* has hosts and hostfile. Next: leave"):
        PoolOptions.checked(cluster="lab")
    (tmp_path / "hosts").unlink()
    (tmp_path / "clusters.toml").write_text(table)
    with pytest.raises(BadOptionError, match=r"\[lab\] .*: hostfile: .* cannot be read"):
        PoolOptions.checked(cluster="lab")


@pytest.mark.parametrize(("hosts", "via"), [("-oProxyCommand=id,b", ""), ("a,b", "-oX")])
def test_a_name_that_ssh_would_take_for_an_option_is_refused(hosts: str, via: str):
    with pytest.raises(BadOptionError, match="begins with a dash, and ssh would take it for an op"):
        PoolOptions.checked(launcher="ssh", hosts=hosts, via=via)


@pytest.mark.parametrize(("host", "legal"), [("a b", "a,b"), ("a ", "a"), ("a\tb", "a,b")])
def test_a_name_with_a_space_is_refused(host: str, legal: str):
    with pytest.raises(BadOptionError, match=f"has a space in it; legal: {legal}, a comma"):
        PoolOptions.checked(launcher="ssh", hosts=["n", host])


@pytest.mark.parametrize("order", [1, -1])
def test_hosts_and_a_file_of_hosts_are_one_too_many(tmp_path: Path, order: int):
    (tmp_path / "hosts").write_text("a")
    words = ["--hosts b", f"--hostfile {tmp_path}/hosts"]
    with pytest.raises(BadOptionError, match=r"--host\w+ and --host\w+ set the same option"):
        VERBS["start"].parser.read(" ".join(words[::order]))
