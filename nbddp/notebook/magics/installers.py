"""``%pip`` and similar magics in a cell of the ranks: they run once, in the notebook's process.

All ranks share its environment. Each rank would install the packages, all at the same time.

Runs in: the notebook's process, thread of the running cell.
"""

from IPython.core.interactiveshell import InteractiveShell

from nbddp.notebook.magics import auto_mode

NAMES = frozenset(("pip", "conda", "mamba", "micromamba", "uv"))


def run_once(shell: InteractiveShell, cell: str) -> str:
    """Run the installers of a cell; return the cell without them, with the same lines.

    Only lines of their own are installers, outside of any ``if`` or loop.

    Args:
        shell: runs the magics.
        cell: the code for the ranks.
    """
    if not any(f"%{name}" in cell for name in NAMES):
        return cell
    lines = cell.split("\n")
    for statement in auto_mode.statements(cell):
        magic = auto_mode.magic_of(statement)
        number = statement.lineno - 1
        if magic is None or magic.is_cell or magic.name not in NAMES:
            continue
        if number < len(lines) and lines[number].strip().startswith(f"%{magic.name}"):
            shell.run_line_magic(magic.name, magic.line)
            lines[number] = "pass"
    return "\n".join(lines)
