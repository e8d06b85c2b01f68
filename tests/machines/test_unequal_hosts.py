"""Hosts that differ from the others: in their versions, in the names that they can resolve."""

import re
import shutil
from pathlib import Path

import pytest

from nbddp.controller.options import PoolOptions
from nbddp.errors import PoolStartError
from tests.support.polling import poll_until
from tests.support.remote_pools import ssh_pool, start
from tests.support.ssh_hosts import SshSite

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool]


def unequal_python(site: SshSite, folder: Path, packages: Path) -> Path:
    """A Python that takes packages of a folder first on the host n2."""
    python = folder / "unequal-python"
    python.write_text(
        f'#!/bin/sh\n[ "$(hostname)" = n2 ] && before={packages}:\n'
        f'sed "s#PYTHONPATH=#PYTHONPATH=$before#" {site.python} > {folder}/$(hostname)-python\n'
        f'exec sh {folder}/$(hostname)-python "$@"\n'
    )
    python.chmod(0o755)
    return python


def test_another_torch_is_named_node_by_node(site: SshSite, tmp_path: Path):
    one, two = site.add_host("n1"), site.add_host("n2")
    metadata = tmp_path / "packages" / "torch-0.4.1.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.4.1\n")
    python = unequal_python(site, tmp_path, metadata.parents[1])
    options = PoolOptions.checked(1, launcher="ssh", hosts=["n1", "n2"], python=str(python))
    with pytest.raises(PoolStartError, match="all nodes need torch, in the same version") as caught:
        start(options)
    first, second = re.findall(r"(n[12]): Python [0-9.]+, torch ([0-9.]+)", str(caught.value))
    assert first[0] == "n1"
    assert first[1] != "0.4.1"
    assert second == ("n2", "0.4.1")
    for host in (one, two):
        poll_until(lambda host=host: not host.processes("nbddp"))  # type: ignore[misc]


def test_a_torch_that_cannot_be_imported_on_one_host_says_why(site: SshSite, tmp_path: Path):
    one, two = site.add_host("n1"), site.add_host("n2")
    torch = tmp_path / "packages" / "torch" / "__init__.py"
    torch.parent.mkdir(parents=True)
    torch.write_text("raise ImportError('libcudart.so.13: no such file')\n")
    python = unequal_python(site, tmp_path, torch.parents[1])
    options = PoolOptions.checked(1, launcher="ssh", hosts=["n1", "n2"], python=str(python))
    said = r"rank 1 on n2 ended while it started .*: ImportError: libcudart.so.13: no such file"
    with pytest.raises(PoolStartError, match=said) as caught:
        start(options)
    step = (
        f". Next: `ssh n2 \"{python} -c 'import torch.distributed'\"` in a terminal, which should"
    )
    assert step in str(caught.value)
    for host in (one, two):
        poll_until(lambda host=host: not host.processes("nbddp"))  # type: ignore[misc]


def test_a_damaged_package_on_one_host_has_a_command_that_shows_the_error(
    site: SshSite, tmp_path: Path
):
    hosts = site.add_host("n1"), site.add_host("n2")
    package = tmp_path / "site-packages" / "msgspec" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text("raise ImportError('_core.so: file too short')\n")
    python = unequal_python(site, tmp_path, package.parents[1])
    options = PoolOptions.checked(1, launcher="ssh", hosts=["n1", "n2"], python=str(python))
    with pytest.raises(PoolStartError, match=r"ImportError: _core.so: file too short") as caught:
        start(options)
    said = str(caught.value)
    assert f". Next: `ssh n2 {python} -P -m nbddp --help` in a terminal, which should" in said
    assert "Perhaps msgspec is damaged there" in said
    shown = hosts[1].run([str(python), "-P", "-m", "nbddp", "--help"])
    assert shown.returncode != 0
    for host in hosts:
        poll_until(lambda host=host: not host.processes("nbddp"))  # type: ignore[misc]


def test_hosts_that_cannot_resolve_even_their_own_names(site: SshSite):
    one, two = site.add_host("n1"), site.add_host("n2")
    for host in (one, two):
        assert host.run(["sh", "-c", "echo 127.0.0.1 localhost > /etc/hosts"]).returncode == 0
    assert shutil.which("getent")
    assert one.run(["getent", "hosts", "n1"]).returncode != 0
    with ssh_pool(site, one, two, n=1) as pool:
        pool.run(
            "t = torch.ones(1)\ndist.all_reduce(t)\ng = dist.new_group([0, 1])\ndist.barrier(g)"
        )
        assert pool.pull("t.item()") == [2.0] * 2
