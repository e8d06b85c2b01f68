"""A line below a NameError of the notebook, if the ranks have that name.

Runs in: the notebook's process, thread of the running cell, after the cell.
"""

from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

from nbddp.notebook.magics import completion
from nbddp.settings import PREDEFINED_NAMES

#: These are modules: they may as well be imported in the notebook.
_MODULES = {"torch": "import torch", "dist": "import torch.distributed as dist"}


def install(shell: InteractiveShell) -> None:
    """Print the line after each cell that needs it."""
    uninstall(shell)
    shell.events.register("post_run_cell", _print_hint)


def uninstall(shell: InteractiveShell) -> None:
    """Take `install` back."""
    if _print_hint in shell.events.callbacks["post_run_cell"]:
        shell.events.unregister("post_run_cell", _print_hint)


def _print_hint(result: ExecutionResult) -> None:
    error = result.error_in_exec
    if type(error) is NameError and error.name:
        hint = _hint(error.name)
        if hint:
            print(hint)


def _hint(name: str) -> str:
    """A sentence about a name that the notebook lacks; empty if the ranks lack it, too."""
    if name in _MODULES:
        return (
            f"{name} is imported on the ranks: begin the cell with %%ddp to run it there, or "
            f"{_MODULES[name]} here"
        )
    if name in PREDEFINED_NAMES:
        return f"{name} is a variable of the ranks: begin the cell with %%ddp to run it there"
    code = f"%%ddp\n{name}"
    found = completion.inspect(code, len(code))  # it has a time limit
    if found is None or not found.found:
        return ""
    return (
        f"{name} is a variable of the ranks: begin the cell with %%ddp to run it there, or fetch "
        f"its values: {name} = %ddp pull {name}"
    )
