"""The machines of notebook 09 end with the notebook, also if that is killed."""

import subprocess
import sys
from pathlib import Path

import pytest

from nbddp.system import process_tree
from tests.support.network_hosts import HostNetwork
from tests.support.polling import poll_until

pytestmark = pytest.mark.full

_REPOSITORY = Path(__file__).parents[2]
_SCRIPT = f"""
import sys
sys.path.insert(0, {str(_REPOSITORY / "notebooks")!r})
import pretend_hosts
machines = pretend_hosts.start()
print(machines._site.notebook_address, machines._site.commands.parent, flush=True)
input()
"""


def test_this_machine_keeps_its_address_when_hosts_go(network: HostNetwork):
    """A host that has to find it again is a host that is not reached, for up to a minute."""
    bridge = Path(f"/sys/class/net/nbt{network.address.split('.')[2]}b/address")
    before = bridge.read_text()
    for host in [network.add_host(name) for name in ("n1", "n2")]:
        assert bridge.read_text() == before
        host.power_off()
    assert bridge.read_text() == before


def test_hosts_of_a_notebook_that_was_killed_leave_nothing(network: HostNetwork):
    notebook = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert notebook.stdout is not None
        assert "network namespaces" in notebook.stdout.readline()
        address, folder = notebook.stdout.readline().split()
        below = process_tree.descendants_of(notebook.pid)
        assert len(below) > 6  # each host and its sshd
        assert _links(address)
    finally:
        notebook.kill()
        notebook.communicate()
    assert address != network.address
    poll_until(lambda: all(process_tree.is_ending(pid) for pid in below), 30.0)
    poll_until(lambda: not _links(address), 30.0)
    poll_until(lambda: not Path(folder).exists(), 30.0)
    assert _links(network.address)  # that of another process


def _links(address: str) -> str:
    """The interfaces and namespaces that belong to the network with this address."""
    mark = f"nbt{address.split('.')[2]}"
    found = [
        subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout
        for words in (["-br", "link"], ["netns", "list"])
    ]
    return "\n".join(line for line in "".join(found).splitlines() if line.startswith(mark))
