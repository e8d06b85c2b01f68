"""Hosts that ssh reaches, and whose agents do not come in time."""

from types import SimpleNamespace
from typing import Any

from nbddp.controller.launch.engine import EngineOptions
from nbddp.controller.launch.ssh import SshEngine

SAYS = "nbddp agent on n1: has reached tcp://10.0.0.1:5, and waits for 1 other node"


def engine(*hosts: str, **lines: list[str]) -> SshEngine:
    """One whose processes have written these lines, by host."""
    made: Any = SshEngine(EngineOptions(len(hosts), 1, hosts, python="/venv/python"))
    for node, host in enumerate(hosts):
        said = lines.get(host, [])
        made._processes[node] = SimpleNamespace(lines=lambda since, said=said: (said, 0))
    return made  # type: ignore[no-any-return]


def test_the_host_is_named_with_the_last_words_and_a_command_that_can_be_run():
    said = engine("n1", "n2", n1=[SAYS], n2=["a", "b"]).late_text((1,))
    assert said == (
        ", and none from n2, whose ssh runs and said: a\nb. Perhaps the shell there or its Python "
        "hangs, or its nbddp is another one than that of the notebook. Next: `ssh n2 /venv/python "
        "-P -m nbddp --help` in a terminal, which should show the help at once; and install the "
        "same nbddp on all machines"
    )


def test_all_hosts_are_late_if_none_is_known_and_many_are_counted():
    hosts = [f"n{number}" for number in range(6)]
    said = engine(*hosts, n0=[SAYS]).late_text(())
    assert "none from n0, whose ssh runs, and said nothing; n1, whose" in said
    assert "n3, whose ssh runs, and said nothing; and 2 more. Perhaps" in said
    assert "Next: `ssh n0 " in said
