"""The relay: carries the connections of agents to a notebook that only ssh connects with here.

    python -m nbddp.controller.launch.relay --socket PATH [--address IP] [--port N]

The ssh of the notebook forwards ``PATH``, a socket, to the notebook's port. The relay listens on
TCP for agents and copies their bytes, which are encrypted, in both directions. It also runs the
programs that start agents, such as ``srun``, and hands them the invitation, the first line of its
input.

Runs in: a process of its own on a login node. It ends with its standard input, that is, with ssh.
"""

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from nbddp.controller.launch.engine_process import EngineProcess, ask
from nbddp.controller.launch.relay_messages import (
    Answer,
    AskProgram,
    Beat,
    Listening,
    ProgramEnded,
    ProgramOutput,
    Report,
    RunProgram,
    StopProgram,
    read_request,
    report_line,
)
from nbddp.errors import NbddpError, PoolStartError
from nbddp.system import network, process_tree
from nbddp.wire.invitation import Invitation

_BLOCK = 1 << 16
_LOOK_S = 0.1
_STOP_S = 2.0
_SHELL_S = 10.0
#: The addresses at which the controller of Slurm reaches its nodes.
_SLURM_NODES = ("sinfo", "-h", "-N", "-o", "%o")


class Relay:
    """Listens for agents, copies bytes, and runs programs.

    Args:
        socket_path: of the socket that ssh forwards to the notebook.
        patience_s: the relay ends after this silence of the notebook.
    """

    def __init__(self, socket_path: Path, patience_s: float) -> None:
        self._socket_path = socket_path
        self._patience_s = patience_s
        self._programs: dict[int, EngineProcess] = {}
        self._read: dict[int, int] = {}  #: the end of what was read of the output of a program
        self._tasks: set[asyncio.Task[None]] = set()
        self._input = b""
        self._is_over = asyncio.Event()
        self._heard_at = time.monotonic()
        self._invitation: Invitation

    async def serve(self, address: str, port: int) -> None:
        """Serve until the end of the input.

        Args:
            address: of this machine, for agents.
            port: 0: any free one.

        Raises:
            NbddpError: the address cannot be had, or ssh has forwarded no socket.
        """
        if not self._socket_path.is_socket():
            raise NbddpError(f"sshd of this machine has made no socket {self._socket_path}")
        line = b""
        while not line.endswith(b"\n") and (byte := os.read(sys.stdin.fileno(), 1)):
            line += byte
        try:
            server = await asyncio.start_server(self._connect, address, port)
        except OSError as error:
            raise NbddpError(
                f"the relay cannot listen on {address}, port {port or '(any)'}: "
                f"{os.strerror(error.errno or 0)}"
            ) from None
        place = "{}:{}".format(*server.sockets[0].getsockname())
        invitation = msgspec.json.decode(line, type=Invitation)
        self._invitation = msgspec.structs.replace(
            invitation, addresses=(f"tcp://{place}",), is_relayed=True
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, self._is_over.set)
        # Standard input and output may be one socket: it stays in blocking mode.
        loop.add_reader(sys.stdin.fileno(), self._take_input)
        pid = os.getpid()
        _say(Listening(place, f"{pid} {process_tree.start_time(pid)}"))
        while not self._is_over.is_set():
            self._look()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_over.wait(), _LOOK_S)
            if time.monotonic() - self._heard_at > self._patience_s:
                break
        loop.remove_reader(sys.stdin.fileno())
        server.close()

    def end_programs(self) -> None:
        """End all programs, and with them their agents."""
        for program in self._programs.values():
            program.close_input()
        for program in self._programs.values():
            program.stop(_STOP_S)

    # --- connections of agents -------------------------------------------------------------------

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self._socket_path)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    # --- requests of the notebook ----------------------------------------------------------------

    def _take_input(self) -> None:
        block = os.read(sys.stdin.fileno(), _BLOCK)
        if not block:
            self._is_over.set()
        self._heard_at = time.monotonic()
        *lines, self._input = (self._input + block).split(b"\n")
        for line in lines:
            match read_request(line):
                case RunProgram(number=number, words=words, needs=needs):
                    self._run(number, words, needs or words[0])
                case StopProgram(number=number):
                    if program := self._programs.pop(number, None):
                        self._do(asyncio.to_thread(program.stop, _STOP_S))
                case AskProgram(number=number, words=words):
                    self._do(self._answer(number, words))
                case Beat():
                    pass

    def _do(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, words: Sequence[str]) -> None:
        _say(Answer(number, await asyncio.to_thread(ask, words)))

    def _run(self, number: int, words: Sequence[str], name: str) -> None:
        find_program(name)
        if shutil.which(name) is None:
            _say(ProgramEnded(number, ""))
            return
        try:
            self._programs[number] = EngineProcess(words, self._invitation)
        except PoolStartError as error:
            _say(ProgramEnded(number, f"could not be started: {error}"))

    def _look(self) -> None:
        """Report what the programs have written, and their ends."""
        for number, program in list(self._programs.items()):
            how = program.end()
            lines, self._read[number] = program.lines(self._read.get(number, 0))
            if lines:
                _say(ProgramOutput(number, tuple(lines)))
            if how:
                _say(ProgramEnded(number, how, program.exit_code))
                self._programs.pop(number).stop(_STOP_S)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_BLOCK):
            writer.write(data)
            await writer.drain()
    writer.close()


def _say(report: Report) -> None:
    with suppress(OSError):  # ssh has gone; the end of the input says so
        sys.stdout.write(report_line(report) + "\n")
        sys.stdout.flush()


def login_environment(shell: str) -> Mapping[str, str]:
    """Return the variables that a login shell of the user sets; empty: it does not say."""
    try:
        output = subprocess.run(
            [shell, "-lc", "env -0"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SHELL_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    pairs = [part.partition("=") for part in output.decode("utf-8", "surrogateescape").split("\0")]
    return {name: value for name, _, value in pairs if name.isidentifier()}


def find_program(name: str) -> None:
    """Take the variables of a login shell if PATH lacks a program: ssh runs no login shell."""
    if shutil.which(name) is None:
        os.environ.update(login_environment(os.environ.get("SHELL", "/bin/sh")))


def own_address(towards: str, *, is_slurm: bool) -> str:
    """Return the address at which nodes most likely reach this machine.

    Args:
        towards: one of them; empty: none is known.
        is_slurm: they are those of the Slurm of this machine.
    """
    node = (ask(_SLURM_NODES).split() or [""])[0] if is_slurm else towards
    with suppress(OSError):
        return network.address_towards(node) if node else network.own_address()
    return network.own_address()


def main() -> None:
    """Listen, and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--address", default="")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--towards", default="")
    parser.add_argument("--slurm", action="store_true")
    parser.add_argument("--patience", type=float, required=True)
    options = parser.parse_args()

    async def serve() -> None:
        relay = Relay(options.socket, options.patience)
        if options.slurm:
            find_program(_SLURM_NODES[0])
        try:
            address = options.address or own_address(options.towards, is_slurm=options.slurm)
            await relay.serve(address, options.port)
        finally:
            await asyncio.to_thread(relay.end_programs)

    try:
        asyncio.run(serve())
    except NbddpError as error:
        sys.stderr.write(f"nbddp: {error}\n")
        sys.exit(1)
    finally:
        options.socket.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
