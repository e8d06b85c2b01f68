"""Hosts with sshd, and pools of ranks on them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import network_hosts, ssh_hosts
from tests.support.kept_machines import Listening
from tests.support.kept_site import Scripts
from tests.support.network_hosts import HostNetwork
from tests.support.ssh_hosts import SshSite


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home folder without the records of kept pools of tests that run at the same time."""
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(home))


@pytest.fixture
def network(tmp_path: Path) -> Iterator[HostNetwork]:
    """A bridge at which hosts can be made."""
    if reason := network_hosts.reason_to_skip():
        pytest.skip(reason)
    with HostNetwork(tmp_path) as made:
        yield made


@pytest.fixture
def site(
    network: HostNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SshSite]:
    """Hosts that `ssh` reaches by name."""
    if reason := ssh_hosts.reason_to_skip():
        pytest.skip(reason)
    made = SshSite(network, tmp_path)
    monkeypatch.setenv("PATH", f"{made.commands}:{os.environ['PATH']}")
    yield made
    made.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder without pools, and a PYTHONPATH with this nbddp."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return tmp_path


@pytest.fixture
def listening(home: Path) -> Iterator[Listening]:
    made = Listening(home)
    yield made
    made.close()


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Scripts]:
    made = Scripts(tmp_path)
    yield made
    made.close()
