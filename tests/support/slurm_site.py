"""A real Slurm on this machine: a controller and some nodes, on the loopback, as root.

Without munge, cgroups and accounting: the options below are from slurm.conf(5) of Slurm 22.05.
"""

import os
import shutil
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

from tests.support.polling import poll_until

_TOOLS = ("slurmctld", "slurmd", "srun", "sinfo", "squeue", "scancel")
CONFIGURATION = """
ClusterName=nbddp
SlurmctldHost={host}({address})
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
{more}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
MpiDefault=none
ReturnToService=2
KillWait=2
MailProg=/bin/true
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=60 State=UP
"""


def reason_to_skip() -> str:
    """Why there can be no Slurm here; empty: there can."""
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if lacking:
        return f"{', '.join(lacking)} is not installed"
    return "" if os.geteuid() == 0 else "slurmd needs root"


class SlurmSite:
    """A cluster of one machine.

    Args:
        folder: for configuration, state and logs.
        nodes: number of nodes, with 8 processors each as far as Slurm knows.
    """

    def __init__(self, folder: Path, nodes: int) -> None:
        self._folder = folder
        self.configuration = folder / "slurm.conf"
        host = socket.gethostname().partition(".")[0]
        with ExitStack() as stack:  # ports that are free, all at the same time
            servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(nodes + 1)]
            ports = [stack.enter_context(server).getsockname()[1] for server in servers]
        self._names = [f"n{number}" for number in range(1, nodes + 1)]
        lines = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8"
            for name, port in zip(self._names, ports[1:], strict=True)
        ]
        self.configuration.write_text(
            CONFIGURATION.format(
                host=host,
                address="127.0.0.1",
                port=ports[0],
                folder=folder,
                nodes="\n".join(lines),
                more="CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
            )
        )
        (folder / "state").mkdir()
        self._daemons = [self._start(["slurmctld", "-D", "-i"])]
        for name in self._names:
            (folder / f"spool.{name}").mkdir()
            self._daemons.append(self._start(["slurmd", "-D", "-N", name]))
        poll_until(lambda: self.ask("sinfo", "-h", "-t", "idle", "-o", "%D") == str(nodes))

    def _start(self, words: list[str]) -> "subprocess.Popen[bytes]":
        with (self._folder / f"{words[0]}-{words[-1]}.log").open("wb") as log:
            return subprocess.Popen(
                words,
                env={**os.environ, "SLURM_CONF": str(self.configuration)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end_node(self, name: str) -> None:
        """End the daemon of a node, which Slurm takes for down then; its processes stay."""
        daemon = self._daemons[1 + self._names.index(name)]
        daemon.kill()
        daemon.wait()
        self.ask("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=test")
        poll_until(lambda: self.ask("sinfo", "-h", "-n", name, "-o", "%T").startswith("down"))

    def ask(self, *words: str) -> str:
        """The output of a command of Slurm."""
        env = {**os.environ, "SLURM_CONF": str(self.configuration)}
        answer = subprocess.run(words, env=env, text=True, capture_output=True, check=False)
        return answer.stdout.strip()

    def jobs(self) -> list[str]:
        """The names of all jobs in the queue."""
        return self.ask("squeue", "-h", "-o", "%j").split()

    def id(self) -> str:
        """The number of the one job in the queue."""
        return self.ask("squeue", "-h", "-o", "%i")

    def close(self) -> None:
        """End all jobs and daemons."""
        self.ask("scancel", "-u", "root")
        poll_until(lambda: not self.jobs())
        for daemon in reversed(self._daemons):
            daemon.terminate()
            daemon.wait()
