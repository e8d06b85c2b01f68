"""The process that hosts the TCPStore, started by the agent of node 0.

Runs in: the agent's thread. The agent binds the port, so no port is ever guessed, and hands the
listening socket over to the store. The store answers through a pipe when it serves.
"""

import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

from nbddp.agent.child_process import NOT_REPORTED, Child
from nbddp.agent.event_loop import EventLoop
from nbddp.agent.exit_reports import EndsAsWell, ends_with_agent, is_of_sigterm, start_failure
from nbddp.agent.fork_server import END_SHOWS_S, ProcessMaker
from nbddp.errors import BadOptionError
from nbddp.system import process_tree
from nbddp.wire.launch_specs import InheritedFd, StoreLaunch
from nbddp.wire.message_types import ForkServerEnd, UnknownStatus
from nbddp.wire.messages import StartFailed, StartStore, StoreExited, StoreReady


@dataclass
class StoreProcess:
    """A living store."""

    process: Child
    host: str
    port: int
    answer_fd: int  #: the store writes "ready" to it, or the reason of its failure

    @classmethod
    def start(cls, maker: ProcessMaker, host: str, port: int) -> "StoreProcess":
        """Bind the port and start the store.

        Raises:
            BadOptionError: the address or the port is not available.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, port))
                listener.listen(1024)
            except OSError as error:
                raise BadOptionError(
                    f"the store cannot listen on MASTER_ADDR {host}, MASTER_PORT {port}: "
                    f"{error.strerror}; legal: an address of this machine and a free port; "
                    "without --env MASTER_PORT=... a free port is chosen"
                ) from error
            bound_port = listener.getsockname()[1]
            answer_fd, write_fd = os.pipe()
            launch = StoreLaunch(
                host=host,
                port=bound_port,
                listener=InheritedFd(listener.fileno()),
                answer=InheritedFd(write_fd),
                agent_pid=os.getpid(),
                forked=maker.forks,
            )
            try:
                process = maker.start("nbddp.rank.store_main", launch, "nbddp-store")
            finally:
                os.close(write_fd)
        return cls(process=process, host=host, port=bound_port, answer_fd=answer_fd)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def kill(self) -> None:
        """End it with SIGKILL: it holds nothing that needs an orderly end."""
        process_tree.kill_quietly(self.pid, signal.SIGKILL)
        self.collect()

    def collect(self) -> int | None:
        """Release what the ended store held, and return its exit code as `Child.collect`."""
        os.close(self.answer_fd)
        return self.process.collect()


class StoreKeeper:
    """Starts the store, and reports its readiness, failure and end.

    Args:
        node: number of the agent's node.
        maker: makes processes.
        loop: reports when the answer or the end of the store is readable.
        send: takes the messages for the hub.
        ends_as_well: says whether the agent ends, too: then the end of the store is not reported.
    """

    def __init__(
        self,
        node: int,
        maker: ProcessMaker,
        loop: EventLoop,
        send: Callable[[StoreReady | StoreExited | StartFailed], None],
        ends_as_well: EndsAsWell,
    ) -> None:
        self._node = node
        self._maker = maker
        self._loop = loop
        self._send = send
        self._ends_as_well = ends_as_well
        self._store: StoreProcess | None = None
        self._is_ending = False
        self._is_awaited = False  #: the store has not answered yet whether it serves

    def start(self, request: StartStore) -> None:
        """Start the store; a failure is sent as `StartFailed`."""
        try:
            store = StoreProcess.start(self._maker, request.host, request.port)
        except Exception as error:  # noqa: BLE001 - any failure must reach the notebook
            if not ends_with_agent(error, self._maker, self._ends_as_well):
                self._send(start_failure(self._node, None, error))
            return
        self._store = store
        self._is_ending = False
        self._is_awaited = True
        self._loop.listen(store.answer_fd, lambda: self._read_answer(store))
        self._loop.listen(store.process.exit_fd, lambda: self._handle_exit(store))

    def _read_answer(self, store: StoreProcess) -> None:
        answer = os.read(store.answer_fd, 1 << 16).decode("utf-8", "replace")
        self._loop.ignore(store.answer_fd)
        self._is_awaited = False
        if answer == "ready":
            self._send(StoreReady(host=store.host, port=store.port, pid=store.pid))
        elif not self._is_ending:
            error = RuntimeError(answer or "the store process ended without an answer")
            self._send(start_failure(self._node, None, error))

    def _handle_exit(self, store: StoreProcess) -> None:
        self._store = None
        if self._is_awaited:
            self._read_answer(store)  # the last message before its end
        self._ignore(store)
        exit_code = store.collect()
        cause: UnknownStatus | ForkServerEnd | None = None
        if exit_code is None:
            cause = UnknownStatus()
        elif exit_code == NOT_REPORTED:
            cause = self._maker.fork_server_end(END_SHOWS_S)
        if self._ends_as_well(is_of_sigterm=is_of_sigterm(exit_code, cause)) is None:
            self._send(StoreExited(pid=store.pid, exit_code=exit_code or 0, cause=cause))

    @property
    def pid(self) -> int:
        """Process id of the store; 0: there is none."""
        return 0 if self._store is None else self._store.pid

    def expect_end(self) -> None:
        """Stop reporting a store that does not come up, because the ranks are being ended."""
        self._is_ending = True

    def kill(self) -> None:
        """End the store, if there is one, without a report."""
        store, self._store = self._store, None
        if store is not None:
            self._ignore(store)
            store.kill()

    def _ignore(self, store: StoreProcess) -> None:
        self._loop.ignore(store.answer_fd)
        self._loop.ignore(store.process.exit_fd)
