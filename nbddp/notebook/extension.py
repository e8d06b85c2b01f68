"""``%load_ext``, ``%unload_ext`` and ``%reload_ext nbddp``.

Runs in: the notebook's process, thread of the running cell.

IPython reloads an extension by unloading and loading it, and tells neither which of the two is
meant. So the pool is stopped at the end of the cell that unloads, if it has not loaded again.
"""

import sys

from IPython.core.interactiveshell import InteractiveShell

from nbddp.notebook import session
from nbddp.notebook.magics import auto_mode, completion
from nbddp.notebook.magics.magics import DdpMagics

_leaving: "_Leaving | None" = None


def load(shell: InteractiveShell) -> None:
    """Register the magics; after an unload in the same cell, all is as before it."""
    global _leaving
    left, _leaving = _leaving, None
    shell.register_magics(DdpMagics)
    auto_mode.install(shell)
    completion.install(shell)
    if left is not None:
        left.cancel()
        auto_mode.current(shell).options = left.auto_options


def unload(shell: InteractiveShell) -> None:
    """Forget the magics, and stop the pool when the running cell has ended."""
    global _leaving  # noqa: PLW0603 - an extension is loaded once per process
    _leaving = _Leaving(shell)
    auto_mode.uninstall(shell)
    completion.uninstall(shell)
    for magics in (shell.magics_manager.magics["line"], shell.magics_manager.magics["cell"]):
        magics.pop("ddp", None)
    if auto_mode.runs_in_cell(sys._getframe(1)):
        shell.events.register("post_execute", _leaving.end)
    else:
        _leaving.end()


class _Leaving:
    """What an unload is about to do."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self.auto_options = auto_mode.current(shell).options

    def cancel(self) -> None:
        """It was a reload."""
        if self.end in self._shell.events.callbacks["post_execute"]:
            self._shell.events.unregister("post_execute", self.end)

    def end(self) -> None:
        """It was none."""
        global _leaving  # noqa: PLW0603 - likewise
        _leaving = None
        self.cancel()
        session.await_start()
        living = session.current_pool()
        if living is not None:
            living.stop()
            print(f"stopped: {living.world_size} ranks, and their variables")  # noqa: T201 - for the reader
