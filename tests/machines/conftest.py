"""Hosts with sshd, and pools of ranks on them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import network_hosts, ssh_hosts
from tests.support.network_hosts import HostNetwork
from tests.support.ssh_hosts import SshSite


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
