"""Auto mode: every cell runs on the ranks, unless it begins with ``%%local``.

Runs in: the notebook's process, thread of the running cell.

    front end --code--> AutoMode --for the ranks?--> %%_ddp_auto --> DdpMagics.cell
                                '--else: unchanged--> the notebook

IPython passes the text of each cell through `AutoMode`. It also passes the body of ``%%time``, the
code that a cell gives to `run_cell`, and the code of a front end's silent requests. These run in
the notebook. Cells go to the ranks unchanged, so that line numbers and the names by which a
debugger knows cells stay right.
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
from nbddp.line_breaks import with_line_breaks
from nbddp.notebook import session
from nbddp.notebook.magics import mixed_cell
from nbddp.notebook.magics.cell_line import parse_cell

#: Cell magics whose body is Python, which runs where the variables are.
_MAGICS_OF_RANKS = frozenset(("capture", "prun", "time", "timeit"))
#: Line magics about this process or its history, and those that must not run once for each rank.
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
class Magic:
    """A magic in transformed source."""

    name: str
    line: str
    is_cell: bool

    @property
    def runs_in_notebook(self) -> bool:
        """Whether the magic works in the notebook's process."""
        if self.is_cell:
            return self.name not in _MAGICS_OF_RANKS
        if self.name in ("load_ext", "reload_ext", "unload_ext"):
            return self.line.split()[:1] == ["nbddp"]
        if self.name in ("pinfo", "pinfo2"):
            return self.line.startswith("%")  # `%ddp?`; `name?` is about a variable of the ranks
        return self.name in _MAGICS_OF_NOTEBOOK


def goes_to_ranks(code: str) -> bool:
    """Whether auto mode sends this cell to the ranks.

    It does not if there is nothing to run, or if each statement is a magic of the notebook.
    """
    tree = _parse(code)
    # A cell with a syntax error goes the same way: the check of `%%ddp` reports the error.
    return tree is None or not all(_is_for_notebook(statement) for statement in tree.body)


def notebook_magics(code: str) -> list[str]:
    """The magics of the notebook, as ``%name``, that a cell uses anywhere."""
    tree = _parse(code)
    if tree is None:
        return []
    return _notebook_magics(tree)


def mixed_refusal(code: str, *, ranks_line: str = "", notebook_line: str = "") -> str:
    """The cells to write in place of one with magics of the notebook and code for the ranks.

    Args:
        code: the cell.
        ranks_line: the first line of a cell for the ranks.
        notebook_line: the first line of a cell for the notebook that has more than magics.
    """
    return mixed_cell.refusal(
        code,
        statements(code),
        _notebook_magics,
        is_for_notebook=_is_for_notebook,
        ranks_line=ranks_line,
        notebook_line=notebook_line,
    )


def statements(code: str) -> list[ast.stmt]:
    """The statements of a cell, with its magics as calls; none for code with an error."""
    tree = _parse(code)
    return [] if tree is None else tree.body


def magic_of(statement: ast.stmt) -> Magic | None:
    """The magic that a statement consists of, if it does."""
    return _magic(statement.value) if isinstance(statement, ast.Expr) else None


class AutoMode:
    """An input transformer of IPython that sends cells to the ranks while it is on."""

    #: IPython leaves such transformers out when it asks whether a cell is complete.
    has_side_effects = True

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self.options: str | None = None  #: None: off
        self._lines_above = 0  #: of ``%%local``, until `restore_lines` puts them back

    def __call__(self, lines: list[str]) -> list[str]:
        """Transform a cell, before IPython's other transformers do."""
        self._lines_above = 0
        if lines and lines[0].split(maxsplit=1)[:1] == [_LOCAL]:
            return self._local(lines)
        code = self._source("".join(lines))
        options = None if code is None else self.options_for(code)
        if options is None:
            return lines
        return [f"get_ipython().run_cell_magic('_ddp_auto', {options!r}, {code!r})\n"]

    def restore_lines(self, lines: list[str]) -> list[str]:
        """Give lines below ``%%local`` their numbers back, after IPython's other transformers.

        Earlier, the empty lines would be dropped, and no magic could stand in the first line.
        """
        above, self._lines_above = self._lines_above, 0
        return ["\n"] * above + lines

    def options_for(self, code: str) -> str | None:
        """The options of ``%%ddp`` with which a cell runs on the ranks; None: it runs here."""
        return self.options if self.options is not None and goes_to_ranks(code) else None

    def describe(self) -> str:
        """A sentence about the mode, for the user."""
        if self.options is None:
            return "auto mode is off: only %%ddp cells run on the ranks"
        below = f" as below %%ddp {self.options}" if self.options else ""
        return f"auto mode is on: every cell runs on the ranks{below}; {_LOCAL} keeps one here"

    def _local(self, lines: list[str]) -> list[str]:
        """The lines of a cell below its ``%%local``."""
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
        """The cell that the user has just run, as written.

        Args:
            text: the cell, or a part of it; IPython may have added a line end.

        Returns:
            None: ``text`` is not a whole cell, or auto mode is off.
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
    """The magics of auto mode and of ``nbddp console``, and ``%%local``."""

    shell: InteractiveShell

    @cell_magic("_ddp_auto")  # type: ignore[arg-type]  # IPython types its decorators for classes only
    def distributed(self, line: str, cell: str) -> object:
        """Run a cell of auto mode as ``%%ddp`` does, without a line above the code.

        Raises:
            BadOptionError: the cell mixes a magic of the notebook with code for the ranks.
        """
        if notebook_magics(cell):
            raise BadOptionError(f"auto mode: {mixed_refusal(cell, notebook_line=_LOCAL)}")
        return self.shell.find_cell_magic("ddp")(line, cell, first_line=1)

    @cell_magic("_ddp_console")  # type: ignore[arg-type]  # as above
    def from_console(self, line: str, cell: str) -> object:
        """Run a cell of ``nbddp console`` as `distributed` does, but never start a pool.

        Raises:
            NoPoolError: no pool is running.
        """
        session.pool()
        return self.distributed(line, cell)

    @cell_magic("local")  # type: ignore[arg-type]  # as above
    def local(self, line: str, cell: str) -> None:
        """Run the cell in the notebook's process, also in auto mode."""
        self.shell.run_cell(cell)


def install(shell: InteractiveShell) -> None:
    """Register ``%%local`` and the transformers of auto mode; a mode that is on stays on."""
    if _modes(shell):
        return  # an nbddp kernel, in which the user loads nbddp once more
    mode = AutoMode(shell)
    shell.input_transformers_cleanup.insert(0, mode)
    shell.input_transformers_post.append(mode.restore_lines)
    shell.register_magics(AutoMagics)


def uninstall(shell: InteractiveShell) -> None:
    """Switch the mode off, and remove the transformers and magics."""
    for mode in _modes(shell):
        shell.input_transformers_cleanup.remove(mode)
        shell.input_transformers_post.remove(mode.restore_lines)
        mode.options = None
    for name in ("_ddp_auto", "_ddp_console", "local"):
        shell.magics_manager.magics["cell"].pop(name, None)


def current(shell: InteractiveShell) -> AutoMode:
    """The mode of a shell; it is installed if it is missing."""
    install(shell)
    return _modes(shell)[0]


def auto(shell: InteractiveShell, *, mode: str, options: str) -> None:
    """Switch the mode, and print it.

    Args:
        shell: the shell whose cells go to the ranks.
        mode: ``on`` or ``off``; empty: it stays as it is.
        options: options of ``%%ddp`` for every cell.

    Raises:
        BadOptionError: the pool does not have these ranks.
    """
    pool = session.current_pool()
    if pool is not None and mode == "on":
        pool.rank_set(parse_cell(options).ranks)  # refused here, not in each cell
    switched = current(shell)
    if mode:
        switched.options = options if mode == "on" else None
    print(with_line_breaks(switched.describe()))


def options_for(code: str) -> str | None:
    """The options of ``%%ddp`` with which auto mode runs a cell on the ranks; None: it does not."""
    shell = get_ipython()
    modes = [] if shell is None else _modes(shell)
    return modes[0].options_for(code) if modes else None


def _modes(shell: InteractiveShell) -> list[AutoMode]:
    """The mode of this shell, in a list; empty if nbddp is not loaded."""
    return [
        transformer
        for transformer in shell.input_transformers_cleanup
        if isinstance(transformer, AutoMode)
    ]


def _parse(code: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks print warnings, once
            return ast.parse(TransformerManager().transform_cell(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _notebook_magics(tree: ast.AST) -> list[str]:
    magics = (_magic(node) for node in ast.walk(tree))
    return [f"%{magic.name}" for magic in magics if magic is not None and magic.runs_in_notebook]


def _is_for_notebook(statement: ast.stmt) -> bool:
    """Whether a statement is ``%ddp ...``, ``x = %ddp pull ...``, or ``exit`` in a terminal."""
    if not isinstance(statement, ast.Expr | ast.Assign):
        return False
    value = statement.value
    magic = _magic(value)
    if magic is not None:
        return magic.runs_in_notebook
    function = value.func if isinstance(value, ast.Call) else value
    return isinstance(function, ast.Name) and function.id in ("exit", "quit")


def _magic(node: ast.AST) -> Magic | None:
    match node:
        case ast.Call(
            func=ast.Attribute(
                value=ast.Call(func=ast.Name(id="get_ipython")),
                attr="run_line_magic" | "run_cell_magic" as kind,
            ),
            args=[ast.Constant(value=str(name)), ast.Constant(value=str(line)), *_],
        ):
            return Magic(name, line, is_cell=kind == "run_cell_magic")
        case _:
            return None


def runs_in_cell(frame: types.FrameType | None) -> bool:
    """Whether the code of a cell has called this frame, directly or not."""
    code = InteractiveShell.run_code.__code__
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
