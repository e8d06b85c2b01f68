"""Tells whether a terminal program such as ``jupyter console`` started this kernel.

Runs in: the notebook's process.

Messages of a console have no mark of their own: nbclient and some notebooks send
the same. A console shows no update of a display, and opens each picture in a viewer of the system.
"""

import os
from pathlib import Path

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
