"""``%pip`` and similar magics in a cell of the ranks: they run once, in the notebook's process.

All ranks share its environment. Each rank would install the packages, all at the same time.

Runs in: the notebook's process, thread of the running cell.
"""

from IPython.core.interactiveshell import InteractiveShell

from nbddp.line_breaks import with_line_breaks
from nbddp.notebook.magics import auto_mode

NAMES = frozenset(("pip", "conda", "mamba", "micromamba", "uv"))
#: Commands that change packages: IPython says below them that the kernel may need a restart.
_CHANGES = frozenset(("add", "install", "remove", "sync", "uninstall", "update", "upgrade"))
#: Fresh ranks are copies of a process that has torch and numpy loaded, which a restart keeps.
_NOTE = (
    "For the ranks: they import new packages at once. For another version of a package that they "
    "have imported: %ddp restart; of torch or numpy: %ddp stop, then %ddp start"
)


def run_once(shell: InteractiveShell, cell: str) -> str:
    """Run the installers of a cell; return the cell without them, with the same lines.

    A note below them says what the ranks need to use what was installed.

    Only lines of their own are installers, outside of any ``if`` or loop.

    Args:
        shell: runs the magics.
        cell: the code for the ranks.
    """
    if not any(f"%{name}" in cell for name in NAMES):
        return cell
    lines = cell.split("\n")
    has_changed = False
    for statement in auto_mode.statements(cell):
        magic = auto_mode.magic_of(statement)
        number = statement.lineno - 1
        if magic is None or magic.is_cell or magic.name not in NAMES:
            continue
        if number < len(lines) and lines[number].strip().startswith(f"%{magic.name}"):
            shell.run_line_magic(magic.name, magic.line)
            lines[number] = "pass"
            has_changed = has_changed or not _CHANGES.isdisjoint(magic.line.split())
    if has_changed:
        print(with_line_breaks(_NOTE))
    return "\n".join(lines)
