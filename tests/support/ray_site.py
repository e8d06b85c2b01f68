"""A Ray cluster of nodes on this machine, with all processes that it has."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

from nbddp.system import network
from tests.support.polling import poll_until

#: Ray's processes load for long on a busy machine.
_START_S = 140.0
_END_S = 30.0
_NODE = ["--num-cpus=2", "--object-store-memory=80000000", "--block"]


def reason_to_skip() -> str:
    """Why there can be no cluster here; empty: there can."""
    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed: pip install 'nbddp[ray]'"
    return ""


class RaySite:
    """A head, and the nodes that `add_node` adds, with two processors each."""

    def __init__(self) -> None:
        # Short: paths of sockets are limited.
        self.folder = Path(tempfile.mkdtemp(prefix="nbray-"))
        self.address = f"{network.own_address()}:{_free_port()}"
        self._programs: list[subprocess.Popen[bytes]] = []
        host, port = self.address.split(":")
        head = ["--head", f"--node-ip-address={host}", f"--port={port}"]
        try:
            self._start(*head, "--include-dashboard=false")
        except BaseException:
            self.close()
            raise

    def add_node(self) -> int:
        """Start a node; give its number, from 1."""
        return self._start(
            f"--address={self.address}", f"--node-ip-address={self.address.split(':')[0]}"
        )

    def _start(self, *words: str) -> int:
        number = len(self._programs)
        log = self.folder / f"node{number}.log"
        ray = Path(sys.executable).with_name("ray")
        env = os.environ | {
            "RAY_TMPDIR": str(self.folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "120",
        }
        env.pop("RAY_ADDRESS", None)
        with log.open("wb") as output:
            program = subprocess.Popen(
                [str(ray), "start", *words, *_NODE],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
            )
        self._programs.append(program)
        poll_until(
            lambda: "Ray runtime started" in log.read_text() or program.poll() is not None, _START_S
        )
        assert program.poll() is None, log.read_text()
        return number

    def kill_node(self, number: int) -> None:
        """Kill the processes of a node, as a machine that loses its power does."""
        for process in _tree(self._programs[number].pid):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._programs[number].wait()

    def close(self) -> None:
        """End all nodes: a node that is asked to end waits 30 s for its jobs."""
        processes = [each for program in self._programs for each in _tree(program.pid)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, _END_S)
        for program in self._programs:
            program.wait(_END_S)
        shutil.rmtree(self.folder, ignore_errors=True)


def _tree(pid: int) -> list[psutil.Process]:
    if not psutil.pid_exists(pid):
        return []
    process = psutil.Process(pid)
    return [*process.children(recursive=True), process]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
