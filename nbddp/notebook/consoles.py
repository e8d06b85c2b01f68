"""Consoles: ``jupyter console``, which may have started this kernel, and ``nbddp console``.

Runs in: the notebook's process.

Messages of ``jupyter console`` have no mark of their own: nbclient and some notebooks send
the same. A console shows no update of a display, and opens each picture in a viewer of the system.
"""

import json
import os
from contextlib import suppress
from pathlib import Path

from IPython.core.getipython import get_ipython

from nbddp.controller.pool import Pool
from nbddp.settings import NOTEBOOK_FILE

_PROGRAMS = ("jupyter-console", "jupyter_console")


def is_console() -> bool:
    """Whether a console started the kernel; False if that cannot be known."""
    parent = os.environ.get("JPY_PARENT_PID", "")  # set by jupyter_client
    return parent.isdecimal() and _names_console(Path(f"/proc/{parent}/cmdline"))


def _names_console(command_line: Path) -> bool:
    try:
        words = command_line.read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    return any(name in word for word in words[:3] for name in _PROGRAMS)


def write_kernel_file(pool: Pool) -> None:
    """Describe the kernel, if any, for ``nbddp console``; only this user enters the folder."""
    if pool.options.has_machines:
        return  # its folders are elsewhere
    app = getattr(getattr(get_ipython(), "kernel", None), "parent", None)
    kernel_fields = {
        "world_size": pool.world_size,
        "pid": os.getpid(),
        "cwd": str(Path.cwd()),
        "connection_file": "" if app is None else app.abs_connection_file,
    }
    with suppress(OSError):  # only the console needs it
        folder = Path(pool.log_path_by_rank[0]).parent
        (folder / NOTEBOOK_FILE).write_text(json.dumps(kernel_fields), encoding="utf-8")
