"""The request that the front end makes now: which cell, and what to answer it with.

Runs in: the notebook's process, in the thread that runs the cell.
"""

from typing import Any

from IPython.core.getipython import get_ipython
from IPython.core.interactiveshell import InteractiveShell


def current() -> dict[str, Any]:
    """The message of the request; empty: there is no front end."""
    kernel = getattr(get_ipython(), "kernel", None)
    return {} if kernel is None else dict(kernel.get_parent())


def parent(kernel: Any) -> dict[str, Any]:
    """The header of the current request, for its answers: it is kept long, so without the code."""
    return {"header": kernel.get_parent().get("header", {})}


def parent_id() -> str:
    """The id of the front end's current request; empty without a front end."""
    return str(current().get("header", {}).get("msg_id", ""))


def is_in_history() -> bool:
    """Whether the running cell belongs to the notebook and has a number."""
    return bool(current().get("content", {}).get("store_history", True))


def execution_count(shell: InteractiveShell) -> int:
    """The number of the running cell; `InteractiveShell.execution_count` may be one ahead.

    Returns:
        0 for a cell of ``nbddp console``, which has no number.
    """
    if not is_in_history():
        return 0
    result = shell.displayhook.exec_result
    count = getattr(result, "execution_count", None)
    return shell.execution_count if count is None else int(count)


def is_whole_cell(code: str) -> bool:
    """Whether the front end's current request is this code, below a line of ``%%ddp`` or none.

    If it is, no other line of that cell has shown anything.
    """
    request = str(current().get("content", {}).get("code", "")).rstrip()
    if not request.endswith(code.rstrip()):
        return False
    above = request[: len(request) - len(code.rstrip())].splitlines()
    return all(not line.strip() or line.lstrip().startswith(("#", "%%ddp")) for line in above)


def is_whole_line() -> bool:
    """Whether the front end's current request is one line, besides comments."""
    lines = str(current().get("content", {}).get("code", "")).splitlines()
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in lines) == 1
