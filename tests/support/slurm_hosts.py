"""A real Slurm on hosts of `network_hosts`: a login node with the controller, and nodes."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.network_hosts import NetworkHost
from tests.support.polling import poll_until
from tests.support.slurm_site import CONFIGURATION

_PORT = 6817


class SlurmHosts:
    """A cluster.

    Args:
        folder: for configuration, state and logs.
        login: has the controller; `ssh` and `srun` run there.
        nodes: with 8 processors each as far as Slurm knows.
        python: of all hosts.
    """

    def __init__(
        self, folder: Path, login: NetworkHost, nodes: Sequence[NetworkHost], python: Path
    ) -> None:
        self._folder = folder / "slurm"
        (self._folder / "state").mkdir(parents=True)
        self._login = login
        lines = [f"NodeName={node.name} NodeAddr={node.address} CPUs=8" for node in nodes]
        self._variable = f"SLURM_CONF={self._folder}/slurm.conf"
        (self._folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                host=login.name,
                address=login.address,
                port=_PORT,
                folder=self._folder,
                nodes="\n".join(lines),
                more="",
            )
        )
        # A host has no cgroups of version 2; this plugin wants none while nothing uses it.
        (self._folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        #: The Python of hosts, for which Slurm is this one.
        self.python = self._folder / "python"
        self.python.write_text(f'#!/bin/sh\n{self._variable} exec {python} "$@"\n')
        os.chmod(self.python, 0o755)  # noqa: PTH101 - as in ssh_hosts
        self._daemons = [self._start(login, "slurmctld", "-D", "-i")]
        for node in nodes:
            (self._folder / f"spool.{node.name}").mkdir()
            self._daemons.append(self._start(node, "slurmd", "-D"))
        poll_until(lambda: self.ask("sinfo", "-h", "-t", "idle", "-o", "%D") == str(len(nodes)))

    def _start(self, host: NetworkHost, *words: str) -> "subprocess.Popen[bytes]":
        with (self._folder / f"{words[0]}-{host.name}.log").open("wb") as log:
            return host.start(
                ["env", self._variable, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def ask(self, *words: str) -> str:
        """The output of a command of Slurm."""
        return self._login.run(["env", self._variable, *words]).stdout.strip()

    def jobs(self) -> list[str]:
        """The names of all jobs in the queue."""
        return self.ask("squeue", "-h", "-o", "%j").split()

    def close(self) -> None:
        """End all jobs and daemons."""
        self.ask("scancel", "-u", "root")
        poll_until(lambda: not self.jobs())
        for daemon in reversed(self._daemons):
            daemon.terminate()
            daemon.wait()
