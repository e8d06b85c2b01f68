"""``%load_ext``, ``%unload_ext`` and ``%reload_ext nbddp``.

Runs in: the notebook's process, thread of the running cell.

IPython reloads an extension by an unload and a load, and neither call can know that it is part of a
reload. So an unload stops the pool at the end of the cell, unless that cell has loaded again.
"""

import re
import sys

from IPython.core.interactiveshell import InteractiveShell

from nbddp.errors import BadOptionError
from nbddp.notebook import session
from nbddp.notebook.magics import auto_mode, completion, console_answers, name_hint
from nbddp.notebook.magics.magics import DdpMagics
from nbddp.notebook.magics.pool_verbs import stopped_text

_MAGIC = re.compile(r"%%ddp(?=\s|$)")
#: IPython's code for a ``%%ddp`` that is not the first line: a line magic named ``%ddp``.
_MISPLACED = "get_ipython().run_line_magic('%ddp',"
_pending: "_PendingUnload | None" = None


def load(shell: InteractiveShell) -> None:
    """Register the magics; an unload in the same cell is taken back."""
    global _pending
    pending, _pending = _pending, None
    shell.register_magics(DdpMagics)
    auto_mode.install(shell)
    completion.install(shell)
    console_answers.install(shell)
    name_hint.install(shell)
    # First of all, so that auto mode sees a %%ddp cell as one.
    if move_up not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.insert(0, move_up)
        shell.input_transformers_post.append(refuse_below_code)
    if pending is not None:
        pending.cancel()
        auto_mode.current(shell).options = pending.auto_options


def unload(shell: InteractiveShell) -> None:
    """Remove the magics, and stop the pool when the running cell has ended."""
    global _pending  # noqa: PLW0603 - an extension is loaded once per process
    _pending = _PendingUnload(shell)
    auto_mode.uninstall(shell)
    completion.uninstall(shell)
    console_answers.uninstall(shell)
    name_hint.uninstall(shell)
    if move_up in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(move_up)
        shell.input_transformers_post.remove(refuse_below_code)
    for magics in (shell.magics_manager.magics["line"], shell.magics_manager.magics["cell"]):
        magics.pop("ddp", None)
    if auto_mode.runs_in_cell(sys._getframe(1)):
        shell.events.register("post_execute", _pending.end)
    else:
        _pending.end()


def move_up(lines: list[str]) -> list[str]:
    r"""Move ``%%ddp`` to the first line, where IPython wants it; the code keeps its line numbers.

    >>> move_up(["# all ranks\n", "%%ddp\n", "print(rank)\n"])
    ['%%ddp\n', '\n', 'print(rank)\n']
    """
    for number, line in enumerate(lines):
        if _MAGIC.match(line):
            magic = line if line.endswith("\n") else f"{line}\n"
            # Empty lines: tracebacks would show comments beside the number of another line.
            return [magic, *["\n"] * number, *lines[number + 1 :]] if number else lines
        if line.strip() and not line.lstrip().startswith("#"):
            break
    return lines


def refuse_below_code(lines: list[str]) -> list[str]:
    """Refuse a cell with ``%%ddp`` below code: IPython would run the code and find no such magic.

    Raises:
        BadOptionError: ``%%ddp`` stands below code, or is indented.
    """
    if any(_MISPLACED in line for line in lines):
        raise BadOptionError(
            "%%ddp has to be the first line of its cell, below nothing but comments. Nothing was "
            "run. Next: put the code above it into a cell of its own"
        )
    return lines


class _PendingUnload:
    """The end of the pool that an unload has scheduled."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self.auto_options = auto_mode.current(shell).options

    def cancel(self) -> None:
        """Keep the pool: the extension was loaded again."""
        if self.end in self._shell.events.callbacks["post_execute"]:
            self._shell.events.unregister("post_execute", self.end)

    def end(self) -> None:
        """Stop the pool: the extension was not loaded again."""
        global _pending  # noqa: PLW0603 - as above
        _pending = None
        self.cancel()
        session.await_start()
        pool = session.current_pool()
        if pool is not None:
            snapshot = pool.snapshot
            pool.stop()
            print(stopped_text(snapshot, ", and their variables"))  # noqa: T201 - for the reader
