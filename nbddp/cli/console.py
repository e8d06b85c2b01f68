"""``nbddp console``: a terminal on one rank of a pool that a notebook has started.

Runs in: a process of its own, which is one more front end of the notebook's kernel. While a cell
runs on the rank, the kernel's control channel answers what needs no code to run: see
`nbddp.notebook.magics.console_answers`.

`nbddp.notebook.session` describes the kernel in a file in the folder of the pool, which only its
user can enter. The file names the connection file of the kernel, which is as private and has the
key.
"""

import argparse
import getpass
import json
import math
import os
import queue
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbddp.errors import BadOptionError, NbddpError, NoPoolError
from nbddp.settings import CONSOLE_REQUEST, LIVE_PREFIX, NOTEBOOK_FILE
from nbddp.system import pool_folder
from nbddp.wire.rank_set import RankSet

if TYPE_CHECKING:
    from jupyter_client.blocking.client import BlockingKernelClient

#: Cells that begin with these words run in the notebook, not on the rank.
_FOR_NOTEBOOK = ("%ddp", "%%ddp", "%%local", "%pip")
_POLL_S = 0.1
_READY_S = 30.0
_BEAT_S = 0.01
_COMPLETE_S = 1.0
#: An answer about a busy rank takes less, unless the machine is very busy.
_ANSWER_S = 10.0
#: A cell that has not begun after this time waits for one of the notebook.
_BEGIN_S = 1.0


@dataclass(frozen=True)
class NotebookPool:
    """A pool of this user, in a living kernel."""

    name: str  #: the name of its folder
    world_size: int
    pid: int  #: the process of the kernel
    cwd: str
    connection_file: str  #: empty: the process is a terminal's, and no kernel

    def __str__(self) -> str:
        process = "kernel" if self.connection_file else "process"
        return f"{self.name} ({self.world_size} ranks, {process} {self.pid}, in {self.cwd})"


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``nbddp console`` to the command line."""
    parser = commands.add_parser("console", help="a terminal on one rank of a notebook's pool")
    parser.add_argument(
        "-r", "--rank", metavar="RANK", default=None,
        help="the rank (default 0), or the choice of one by mesh dimension: dp=0,tp=1",
    )  # fmt: skip
    parser.add_argument(
        "--mesh", metavar="NAME", default="", help="the variable that holds the mesh"
    )
    parser.add_argument("--pool", default="", help="name of the pool, if there are several")
    parser.set_defaults(run=_run)


def find_pools() -> list[NotebookPool]:
    """The pools of notebooks of this user."""
    pools = []
    for file in sorted(folder / NOTEBOOK_FILE for folder in pool_folder.folders()):
        try:
            if file.stat().st_uid != os.getuid():
                continue
            fields = json.loads(file.read_text(encoding="utf-8"))
            os.kill(fields["pid"], 0)
            pools.append(NotebookPool(name=file.parent.name, **fields))
        except (OSError, ValueError, TypeError, KeyError):
            continue  # the pool has just ended, or belongs to another user
    return pools


def choose(name: str) -> NotebookPool:
    """Choose a pool of this user.

    Args:
        name: the name of the pool, or a part of it; empty: the only pool.

    Raises:
        NoPoolError: no pool matches, or several do; the message lists them. Or the pool is not one
            of a kernel.
    """
    all_pools = find_pools()
    pools = [pool for pool in all_pools if pool.connection_file]
    matches = [pool for pool in pools if name in pool.name]
    without_kernel = [pool for pool in all_pools if pool not in pools and name in pool.name]
    if not matches and without_kernel:
        raise NoPoolError(
            "the pool of a terminal IPython or a script has no kernel to connect to: "
            f"{', '.join(map(str, without_kernel))}. Next: type %%ddp -r RANK there, or start "
            "IPython as `jupyter console`, whose pool has one"
        )
    if len(matches) == 1:
        return matches[0]
    if not pools:
        raise NoPoolError("none of your notebooks has a pool. Next: %ddp start -n 2 in a notebook")
    problem = "several pools match." if matches else f"no pool is called {name}."
    listed = "".join(f"\n  {pool}" for pool in matches or pools)
    raise NoPoolError(f"{problem} Next: --pool with one of these names{listed}")


def _run(arguments: argparse.Namespace) -> list[str]:
    from jupyter_client.blocking.client import (  # noqa: PLC0415 - `nbddp --help` is quick
        BlockingKernelClient,
    )

    pool = choose(arguments.pool)
    client = BlockingKernelClient()
    client.load_connection_file(pool.connection_file)
    client.start_channels()
    try:
        _await_heartbeat(client)
        rank = choose_rank(client, pool, arguments.rank, arguments.mesh)
        print(  # noqa: T201 - for the person at the terminal
            f"rank {rank} of {pool.world_size}, {pool.name}, kernel {pool.pid} in {pool.cwd}\n"
            "Ctrl-D leaves; everything stays as it is."
        )
        Console(client, rank).serve()
    finally:
        client.stop_channels()
    return []


def _await_heartbeat(client: "BlockingKernelClient") -> None:
    """Wait until the thread of the heartbeat runs: before, each kernel seems to have ended."""
    deadline = time.monotonic() + _READY_S
    while not client.is_alive() and time.monotonic() < deadline:
        time.sleep(_BEAT_S)


def choose_rank(
    client: "BlockingKernelClient", pool: NotebookPool, choice: str | None, mesh: str = ""
) -> int:
    """Choose the rank of a console.

    Args:
        client: connected to the notebook's kernel, which knows the meshes.
        pool: the pool.
        choice: a rank, or indices of a mesh's dimensions; None: rank 0, or all ranks of ``mesh``.
        mesh: name of the variable that holds the mesh; empty: the latest that has the dimensions.

    Raises:
        BadOptionError: there is no such rank, mesh or index, or the choice has several ranks.
    """
    text = f"{mesh}[{choice or ''}]" if mesh else choice or "0"
    if "=" in text or "[" in text:
        answer = ask_kernel(client, {"ranks": text})
        if answer.get("text"):
            raise BadOptionError(str(answer["text"]))
        ranks = RankSet.of(answer.get("ranks", ()))
    else:
        ranks = RankSet.parse(text, pool.world_size)
    if len(ranks.ranks) == 1:
        return ranks.ranks[0]
    if not ranks.ranks:
        raise NbddpError("the notebook's kernel did not answer. Next: -r with the number of a rank")
    raise BadOptionError(
        f"{text!r} chooses {ranks.describe()}, and a console is on one rank. Next: -r "
        f"{ranks.ranks[0]}, or an index for each dimension of the mesh"
    )


def ask_kernel(client: "BlockingKernelClient", question: dict[str, Any]) -> dict[str, Any]:
    """Ask the notebook's kernel, which may run a cell meanwhile; an empty answer: it gave none.

    Raises:
        NbddpError: the notebook's kernel has ended.
    """
    message = client.session.msg(CONSOLE_REQUEST, question)
    client.control_channel.send(message)
    deadline = time.monotonic() + _ANSWER_S
    while time.monotonic() < deadline:
        if not client.is_alive():
            raise NbddpError("the notebook's kernel has ended")
        try:
            reply = client.get_control_msg(timeout=_POLL_S)
        except queue.Empty:
            continue
        if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
            return dict(reply["content"])
    return {}


class Console:
    """A terminal that reads cells, runs them on one rank, and prints their output.

    Args:
        client: connected to the notebook's kernel.
        rank: the rank that runs the cells.
    """

    def __init__(self, client: "BlockingKernelClient", rank: int) -> None:
        self._client = client
        self._rank = rank
        self._is_running = False  # a cell of this console runs, not one of the notebook
        self._interrupt_is_due = False  # the user interrupted a cell before it began
        self._late_at = math.inf  # when it is told that the cell has not begun

    def serve(self) -> None:
        """Read and run cells until the end of input, or ``exit``.

        Raises:
            NbddpError: the notebook's kernel has ended.
        """
        self._use_readline()
        while True:
            try:
                code = self._read()
            except EOFError:
                print()  # noqa: T201 - the shell's prompt begins a line
                return
            except KeyboardInterrupt:
                print()  # noqa: T201 - as above
                continue
            if code.strip() in ("exit", "quit", "exit()", "quit()"):
                return
            if code.strip():
                self.run(code)

    def run(self, code: str) -> None:
        """Run a cell on the rank, and print its output; or the answer of a busy rank.

        Raises:
            NbddpError: the notebook's kernel has ended.
        """
        try:
            question = {"rank": self._rank, "code": code}
            text = str(ask_kernel(self._client, question).get("text", ""))
        except KeyboardInterrupt:
            return
        if text:
            print(text)  # noqa: T201 - for the person at the terminal
            return
        if not code.lstrip().startswith(_FOR_NOTEBOOK):
            code = f"get_ipython().run_cell_magic('_ddp_console', '-r {self._rank}', {code!r})"
        # The cell stays out of the history, so that the cells of the notebook keep their numbers.
        msg_id = self._client.execute(code, store_history=False, allow_stdin=True)
        self._is_running = self._interrupt_is_due = False
        self._late_at = time.monotonic() + _BEGIN_S
        while True:
            try:
                if self._step(msg_id):
                    return
            except KeyboardInterrupt:
                self._interrupt()

    # --- input ---------------------------------------------------------------------------------

    def _read(self) -> str:
        from IPython.core.inputtransformer2 import TransformerManager  # noqa: PLC0415 - as above

        prompt = f"[{self._rank}] In: "
        lines = [input(prompt)]
        while True:
            text = "\n".join(lines)
            check = TransformerManager().check_complete  # type: ignore[no-untyped-call]
            if check(text + "\n")[0] != "incomplete":
                return text
            lines.append(input("...: ".rjust(len(prompt))))
            if not lines[-1] and len(lines) > 2:
                return "\n".join(lines)

    def _use_readline(self) -> None:
        try:
            import readline  # noqa: PLC0415 - not every Python has it
        except ImportError:
            return
        matches: list[str] = []

        def complete(text: str, state: int) -> str | None:
            if state == 0:
                begin, end = readline.get_begidx(), readline.get_endidx()
                matches[:] = self._complete(readline.get_line_buffer(), begin, end)
            return matches[state] if state < len(matches) else None

        readline.set_completer(complete)
        readline.set_completer_delims(" \t\n()[]{}=+-*/,;:<>!&|^~'\"")
        readline.parse_and_bind("tab: complete")

    def _complete(self, line: str, begin: int, end: int) -> list[str]:
        """The words that can replace ``line[begin:end]``."""
        head = f"%%ddp -r {self._rank}\n"
        try:
            reply = self._client.complete(
                head + line, len(head) + end, reply=True, timeout=_COMPLETE_S
            )
        except (TimeoutError, queue.Empty):
            return []  # the kernel is busy
        content = reply["content"]
        unchanged = line[begin : content["cursor_start"] - len(head)]
        return [unchanged + match for match in content.get("matches", [])]

    # --- output --------------------------------------------------------------------------------

    def _step(self, msg_id: str) -> bool:
        """Handle one message of the kernel; return whether the cell has ended."""
        if not self._client.is_alive():
            raise NbddpError("the notebook's kernel has ended")
        self._answer()
        if time.monotonic() >= self._late_at and not self._is_running:
            self._late_at = math.inf
            print("your cell waits for a cell of the notebook, and runs after it")  # noqa: T201
        try:
            message = self._client.get_iopub_msg(timeout=_POLL_S)
        except queue.Empty:
            return False
        if message["parent_header"].get("msg_id") != msg_id:
            return False
        content = message["content"]
        if message["msg_type"] == "status":
            if content["execution_state"] == "idle":
                return True
            self._is_running = True
            if self._interrupt_is_due:
                self._interrupt()
        self._show(message["msg_type"], content)
        return False

    def _show(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "stream":
            stream = sys.stderr if content["name"] == "stderr" else sys.stdout
            stream.write(content["text"])
            stream.flush()
        elif kind == "error":
            print("\n".join(content["traceback"]))  # noqa: T201 - for the person at the terminal
        elif kind in ("display_data", "execute_result"):
            display_id = str(content.get("transient", {}).get("display_id", ""))
            if not display_id.startswith(LIVE_PREFIX):
                print(content["data"].get("text/plain", ""))  # noqa: T201 - as above

    def _answer(self) -> None:
        """Pass a question of the rank to the user, if there is one."""
        try:
            content = self._client.get_stdin_msg(timeout=0)["content"]
        except queue.Empty:
            return
        read = getpass.getpass if content.get("password") else input
        try:
            self._client.input(read(content["prompt"]))
        except EOFError:
            self._client.input("\x04")

    def _interrupt(self) -> None:
        if not self._is_running:
            # An interrupt now would end a cell of the notebook.
            self._interrupt_is_due = True
            print("your cell waits for a cell of the notebook; it ends when it begins")  # noqa: T201
            return
        self._interrupt_is_due = False
        message = self._client.session.msg("interrupt_request", {})
        self._client.control_channel.send(message)
