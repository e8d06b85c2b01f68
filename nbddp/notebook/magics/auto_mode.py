"""Auto mode: every cell runs on the ranks; ``%%local`` is the way out.

Runs in: the notebook's process, thread of the running cell.

    front end --code--> AutoMode.transform --to the ranks?--> %%_ddp_auto --> DdpMagics.cell
                                          '--else: as it is--> the notebook

IPython passes the text of each cell through `AutoMode.transform`, and not only of cells: of the
body of ``%%time``, of what a cell gives to `run_cell`, of what silent requests of a front end ask.
Those stay where they are. Cells go to the ranks byte by byte, so that lines and the names by which
a debugger knows cells stay right.
"""

import ast
import sys
import types
import warnings
from dataclasses import dataclass

from IPython.core.getipython import get_ipython
from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, magics_class

from nbddp.errors import BadOptionError
from nbddp.notebook import session
from nbddp.notebook.magics.cell_line import parse_cell

#: Cell magics whose body is Python: it belongs where the variables are.
_MAGICS_OF_RANKS = frozenset(("capture", "prun", "time", "timeit"))
#: Line magics about this process, its history, or what must not happen once for each rank.
_MAGICS_OF_NOTEBOOK = frozenset(
    (
        "autosave",
        "conda",
        "connect_info",
        "ddp",
        "edit",
        "hist",
        "history",
        "load",
        "lsmagic",
        "magic",
        "mamba",
        "micromamba",
        "notebook",
        "pip",
        "qtconsole",
        "quickref",
        "recall",
        "rep",
        "rerun",
        "save",
        "subshell",
        "uv",
    )
)
_LOCAL = "%%local"


@dataclass(frozen=True)
class _Magic:
    """A magic as it stands in transformed source."""

    name: str
    line: str
    is_cell: bool

    @property
    def is_of_notebook(self) -> bool:
        """Whether it works in the notebook's process."""
        if self.is_cell:
            return self.name not in _MAGICS_OF_RANKS
        if self.name in ("load_ext", "reload_ext", "unload_ext"):
            return self.line.split()[:1] == ["nbddp"]
        if self.name in ("pinfo", "pinfo2"):
            return self.line.startswith("%")  # `%ddp?`; `name?` is about a variable of the ranks
        return self.name in _MAGICS_OF_NOTEBOOK


def goes_to_ranks(code: str) -> bool:
    """Whether auto mode sends this cell to the ranks.

    Not if there is nothing to run, or each statement is a magic of the notebook.
    """
    tree = _parse(code)
    # What is not Python is sent too: before that, the check says what is wrong.
    return tree is None or not all(_is_of_notebook(statement) for statement in tree.body)


def notebook_magics(code: str) -> list[str]:
    """The magics of the notebook, as ``%name``, that a cell uses anywhere."""
    tree = _parse(code)
    if tree is None:
        return []
    found = (_magic(node) for node in ast.walk(tree))
    return [f"%{magic.name}" for magic in found if magic is not None and magic.is_of_notebook]


class AutoMode:
    """Whether cells go to the ranks, and with which options of ``%%ddp``."""

    #: IPython then leaves it out when it asks whether a cell is complete.
    has_side_effects = True

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self.options: str | None = None  #: None: off
        self._lines_above = 0  #: of ``%%local``, until `restore_lines` puts them back

    def __call__(self, lines: list[str]) -> list[str]:
        """The first of IPython's transformers; the others get what it gives."""
        self._lines_above = 0
        if lines and lines[0].split(maxsplit=1)[:1] == [_LOCAL]:
            return self._local(lines)
        code = self._source("".join(lines))
        options = None if code is None else self.options_for(code)
        if options is None:
            return lines
        return [f"get_ipython().run_cell_magic('_ddp_auto', {options!r}, {code!r})\n"]

    def restore_lines(self, lines: list[str]) -> list[str]:
        """The last of IPython's transformers: lines below ``%%local`` get their numbers back.

        Before, another magic could not stand in the first line, and empty ones would be dropped.
        """
        above, self._lines_above = self._lines_above, 0
        return ["\n"] * above + lines

    def options_for(self, code: str) -> str | None:
        """The options of ``%%ddp`` with which this cell runs on the ranks; None: it does not."""
        return self.options if self.options is not None and goes_to_ranks(code) else None

    def describe(self) -> str:
        """For the reader."""
        if self.options is None:
            return "auto mode is off: only %%ddp cells run on the ranks"
        below = f" as below %%ddp {self.options}" if self.options else ""
        return f"auto mode is on: every cell runs on the ranks{below}; {_LOCAL} keeps one here"

    def _local(self, lines: list[str]) -> list[str]:
        """The cell without its ``%%local``."""
        line, *rest = lines
        if line.split("#")[0].split() != [_LOCAL]:
            raise BadOptionError(
                f"{_LOCAL} takes no options, and got {line.split(maxsplit=1)[1].strip()!r}"
            )
        while rest and not rest[0].strip():
            del rest[0]
        self._lines_above = len(lines) - len(rest)
        return rest

    def _source(self, text: str) -> str | None:
        """What the user has just run, as written; None: ``text`` is something within it.

        Args:
            text: with a line end that IPython may have added.
        """
        if self.options is None or runs_in_cell(sys._getframe(1)):
            return None
        kernel = getattr(self._shell, "kernel", None)
        if kernel is None:
            return text  # a terminal
        request = kernel.get_parent()
        content = request.get("content", {})
        if (
            request.get("header", {}).get("msg_type") != "execute_request"
            or content.get("silent")
            or not content.get("store_history", True)
        ):
            return None
        source = content.get("code")
        return source if source in (text, text.removesuffix("\n")) else None


@magics_class
class AutoMagics(Magics):
    """What auto mode turns cells into."""

    shell: InteractiveShell

    @cell_magic("_ddp_auto")  # type: ignore[arg-type]  # IPython types its decorators for classes only
    def distributed(self, line: str, cell: str) -> object:
        """What auto mode makes of a cell: ``%%ddp``, without a line above the code."""
        magics = notebook_magics(cell)
        if magics:
            raise BadOptionError(
                f"auto mode: {magics[0]} works in the notebook's process, the rest of the cell on "
                f"the ranks. Nothing was run. Next: give {magics[0]} a cell of its own"
            )
        return self.shell.find_cell_magic("ddp")(line, cell, first_line=1)

    @cell_magic("_ddp_console")  # type: ignore[arg-type]  # likewise
    def from_console(self, line: str, cell: str) -> object:
        """What `nbddp console` sends: it is a terminal on a pool, and starts none."""
        session.pool()
        return self.distributed(line, cell)

    @cell_magic("local")  # type: ignore[arg-type]  # likewise
    def local(self, line: str, cell: str) -> None:
        """Run the cell in the notebook's process, also in auto mode."""
        self.shell.run_cell(cell)


def install(shell: InteractiveShell) -> None:
    """Make ``%%local`` and ``%ddp auto`` known; the mode is off, unless it is on already."""
    if _modes(shell):
        return  # a kernel of our own, in which somebody loads nbddp once more
    mode = AutoMode(shell)
    shell.input_transformers_cleanup.insert(0, mode)
    shell.input_transformers_post.append(mode.restore_lines)
    shell.register_magics(AutoMagics)


def uninstall(shell: InteractiveShell) -> None:
    """Forget them."""
    for mode in _modes(shell):
        shell.input_transformers_cleanup.remove(mode)
        shell.input_transformers_post.remove(mode.restore_lines)
        mode.options = None
    for name in ("_ddp_auto", "_ddp_console", "local"):
        shell.magics_manager.magics["cell"].pop(name, None)


def current(shell: InteractiveShell) -> AutoMode:
    """The mode of a shell in which nbddp is loaded."""
    install(shell)
    return _modes(shell)[0]


def auto(shell: InteractiveShell, *, mode: str, options: str) -> None:
    """Switch the mode, and tell it.

    Args:
        shell: whose cells go to the ranks.
        mode: ``on`` or ``off``; empty: it stays as it is.
        options: of ``%%ddp``, for every cell.

    Raises:
        BadOptionError: the pool does not have these ranks.
    """
    pool = session.current_pool()
    if pool is not None and mode == "on":
        pool.rank_set(parse_cell(options).ranks)  # refused here, not in each cell
    switched = current(shell)
    if mode:
        switched.options = options if mode == "on" else None
    print(switched.describe())


def options_for(code: str) -> str | None:
    """The options of ``%%ddp`` with which a cell runs on the ranks by itself; None: it does not."""
    shell = get_ipython()
    modes = [] if shell is None else _modes(shell)
    return modes[0].options_for(code) if modes else None


def _modes(shell: InteractiveShell) -> list[AutoMode]:
    """The mode of this shell; none if nbddp is not loaded in it."""
    return [each for each in shell.input_transformers_cleanup if isinstance(each, AutoMode)]


def _parse(code: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks say it, once
            return ast.parse(TransformerManager().transform_cell(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_of_notebook(statement: ast.stmt) -> bool:
    """``%ddp ...``, ``x = %ddp pull ...``, and ``exit`` of a terminal."""
    if not isinstance(statement, ast.Expr | ast.Assign):
        return False
    value = statement.value
    magic = _magic(value)
    if magic is not None:
        return magic.is_of_notebook
    called = value.func if isinstance(value, ast.Call) else value
    return isinstance(called, ast.Name) and called.id in ("exit", "quit")


def _magic(node: ast.AST) -> _Magic | None:
    match node:
        case ast.Call(
            func=ast.Attribute(
                value=ast.Call(func=ast.Name(id="get_ipython")),
                attr="run_line_magic" | "run_cell_magic" as kind,
            ),
            args=[ast.Constant(value=str(name)), ast.Constant(value=str(line)), *_],
        ):
            return _Magic(name, line, is_cell=kind == "run_cell_magic")
        case _:
            return None


def runs_in_cell(frame: types.FrameType | None) -> bool:
    """Whether code of a cell has called this, directly or not."""
    code = InteractiveShell.run_code.__code__
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
