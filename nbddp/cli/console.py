"""``nbddp console``: a terminal on one rank of a pool that a notebook has started.

Runs in: a process of its own, which is one more front end of the notebook's kernel. What is typed
runs on the rank in its turn: after the cell that the notebook runs now.

A notebook leaves word of its kernel in the folder of the pool (`nbddp.notebook.session`), which
only its user can enter; the connection file that it names is as private, and has the key.
"""

import argparse
import getpass
import json
import os
import queue
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbddp.errors import NbddpError, NoPoolError
from nbddp.settings import LIVE_PREFIX, NOTEBOOK_WORD
from nbddp.wire.rank_set import RankSet

if TYPE_CHECKING:
    from jupyter_client.blocking.client import BlockingKernelClient

#: Lines that are not for the rank.
_FOR_NOTEBOOK = ("%ddp", "%%ddp", "%%local", "%pip")
_POLL_S = 0.1
_READY_S = 30.0
_COMPLETE_S = 1.0


@dataclass(frozen=True)
class Found:
    """A pool of this user, in a kernel that lives."""

    name: str  #: of its folder
    world_size: int
    pid: int  #: of the kernel
    cwd: str
    connection_file: str

    def __str__(self) -> str:
        return f"{self.name} ({self.world_size} ranks, kernel {self.pid}, in {self.cwd})"


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Make ``nbddp console`` known."""
    parser = commands.add_parser("console", help="a terminal on one rank of a notebook's pool")
    parser.add_argument("-r", "--rank", default="0", help="which one (0)")
    parser.add_argument("--pool", default="", help="name of its folder, if there are several")
    parser.set_defaults(run=_run)


def find_pools() -> list[Found]:
    """The pools of notebooks of this user."""
    found = []
    for word in sorted(Path(tempfile.gettempdir()).glob(f"nbddp-*/{NOTEBOOK_WORD}")):
        try:
            if word.stat().st_uid != os.getuid():
                continue
            fields = json.loads(word.read_text(encoding="utf-8"))
            os.kill(fields["pid"], 0)
            found.append(Found(name=word.parent.name, **fields))
        except (OSError, ValueError, TypeError, KeyError):
            continue  # it has just ended, or is not ours
    return found


def choose(name: str) -> Found:
    """The pool of this name; the only one, without a name. Raises `NoPoolError`."""
    pools = find_pools()
    fitting = [pool for pool in pools if name in pool.name]
    if len(fitting) == 1:
        return fitting[0]
    if not pools:
        raise NoPoolError("no notebook of yours has a pool. Next: %ddp start -n 2 in a notebook")
    what = f"no pool is called {name}." if not fitting else "which pool?"
    listed = "".join(f"\n  {pool}" for pool in fitting or pools)
    raise NoPoolError(f"{what} Next: --pool with one of these names{listed}")


def _run(words: argparse.Namespace) -> list[str]:
    from jupyter_client.blocking.client import (  # noqa: PLC0415 - `nbddp --help` is quick
        BlockingKernelClient,
    )

    pool = choose(words.pool)
    (rank,) = RankSet.parse(words.rank, pool.world_size).ranks[:1]
    client = BlockingKernelClient()
    client.load_connection_file(pool.connection_file)
    client.start_channels()
    try:
        print(  # noqa: T201 - for the person at the terminal
            f"rank {rank} of {pool.world_size}, {pool.name}, kernel {pool.pid} in {pool.cwd}\n"
            "Ctrl-D leaves; everything stays as it is."
        )
        Console(client, rank).serve()
    finally:
        client.stop_channels()
    return []


class Console:
    """Reads, runs, prints."""

    def __init__(self, client: "BlockingKernelClient", rank: int) -> None:
        self._client = client
        self._rank = rank
        self._is_running = False  # our cell, not one of the notebook
        self._interrupt_is_due = False  # it came before that

    def serve(self) -> None:
        """Until the end of input, or ``exit``."""
        self._use_readline()
        while True:
            try:
                code = self._read()
            except EOFError:
                print()  # noqa: T201 - the shell's prompt begins a line
                return
            except KeyboardInterrupt:
                print()  # noqa: T201 - likewise
                continue
            if code.strip() in ("exit", "quit", "exit()", "quit()"):
                return
            if code.strip():
                self.run(code)

    def run(self, code: str) -> None:
        """Run a cell on the rank, and show what comes of it. Raises `NbddpError`: no kernel."""
        if not code.lstrip().startswith(_FOR_NOTEBOOK):
            code = f"get_ipython().run_cell_magic('_ddp_console', '-r {self._rank}', {code!r})"
        # Without history: the cells of the notebook keep their numbers.
        msg_id = self._client.execute(code, store_history=False, allow_stdin=True)
        self._is_running = self._interrupt_is_due = False
        while True:
            try:
                if self._step(msg_id):
                    return
            except KeyboardInterrupt:
                self._interrupt()

    # --- input ---------------------------------------------------------------------------------

    def _read(self) -> str:
        from IPython.core.inputtransformer2 import TransformerManager  # noqa: PLC0415 - likewise

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
        """What may stand in place of ``line[begin:end]``."""
        head = f"%%ddp -r {self._rank}\n"
        try:
            reply = self._client.complete(
                head + line, len(head) + end, reply=True, timeout=_COMPLETE_S
            )
        except (TimeoutError, queue.Empty):
            return []  # the kernel is busy
        content = reply["content"]
        kept = line[begin : content["cursor_start"] - len(head)]
        return [kept + match for match in content.get("matches", [])]

    # --- output --------------------------------------------------------------------------------

    def _step(self, msg_id: str) -> bool:
        """Take what has come; tells whether the cell is over."""
        if not self._client.is_alive():
            raise NbddpError("the notebook's kernel has ended")
        self._answer()
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
                print(content["data"].get("text/plain", ""))  # noqa: T201 - likewise

    def _answer(self) -> None:
        """Ask the person what the rank asks."""
        try:
            content = self._client.get_stdin_msg(timeout=0)["content"]
        except queue.Empty:
            return
        ask = getpass.getpass if content.get("password") else input
        try:
            self._client.input(ask(content["prompt"]))
        except EOFError:
            self._client.input("\x04")

    def _interrupt(self) -> None:
        if not self._is_running:
            # An interrupt now would end a cell of the notebook.
            self._interrupt_is_due = True
            print("your cell waits for one of the notebook, and ends as it begins")  # noqa: T201
            return
        self._interrupt_is_due = False
        message = self._client.session.msg("interrupt_request", {})
        self._client.control_channel.send(message)
