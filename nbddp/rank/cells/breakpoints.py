"""The debugger that `breakpoint()` opens: its steps and its stack stay in the user's code.

Runs in: the rank process, the thread that comes to the breakpoint.

IPython runs each statement of a cell as a module of its own. So the debugger leaves out the call
and the return of a statement, and the code between two of them.
"""

import ast
import bdb
import builtins
import cmd
import code
import contextlib
import ctypes
import functools
import pdb
import sys
import traceback
import types
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch.distributed as dist
from IPython.core import debugger
from IPython.core.interactiveshell import InteractiveShell

from nbddp.rank import code_sites
from nbddp.wire.flight_recorder import Site

#: Packages of code that runs the user's code, and of the debugger itself.
_MACHINERY = frozenset(
    ("IPython", "asyncio", "bdb", "cmd", "contextlib", "ipykernel", "nbddp", "pdb", "traitlets")
)
#: Commands of pdb after which a program goes on.
_GO = frozenset(
    "next n step s return r until unt jump j continue cont c run restart".split()  # noqa: SIM905
)
_BREAK = ("break", "b", "tbreak")
_DEBUG = "debug"  #: opens a debugger of its own, which steps through an expression
#: Commands of the prompt for all ranks that pdb does not have.
OF_ALL_RANKS = frozenset(
    ("diff", "hold", "ranks", "release", "retry", "show", "skip", "trace", "waits")
)
#: Attributes of `sys` for the error that was shown last.
_LAST = ("last_type", "last_value", "last_traceback", "last_exc")
_NEVER = -1  #: `bdb.Bdb.stoplineno` after ``c``


class UserStack(debugger.Pdb):
    """A debugger whose stack begins with the user's cell, and has no frame of the machinery."""

    def get_stack(self, *args: Any, **kwargs: Any) -> tuple[list[Any], int]:
        """Return the frames of the user's code, and the index of the current one."""
        stack, index = super().get_stack(*args, **kwargs)
        cell = next((place for place, (frame, _) in enumerate(stack) if _is_cell(frame)), None)
        if cell is None:
            return stack, index
        kept = [
            place
            for place in range(cell, len(stack))
            if place == index or not _is_machinery(stack[place][0])
        ]
        return [stack[place] for place in kept], max(0, sum(place <= index for place in kept) - 1)

    def onecmd(self, line: str) -> bool:
        """Do what a line says; no error of that line ends the cell, `SystemExit` included."""
        try:
            return bool(super().onecmd(line))
        except (Exception, KeyboardInterrupt):  # pdb shows errors of the line; this is none
            raise
        except BaseException as error:  # noqa: BLE001 - of the user's line
            self._show(error)
            return False

    def default(self, line: str) -> None:
        """Run a line of Python; what it assigns stays, also in a function."""
        super().default(line)
        _keep_locals(self.curframe)

    def do_interact(self, arg: str) -> None:
        """Open a prompt for Python; ``exit()`` comes back, as Ctrl-D does.

        Names that its lines assign stay, other than with pdb, whose prompt has its own namespace.
        Errors of its lines are shown there, and forgotten: IPython's hook for errors would keep
        them as errors of the cell, and ``%debug`` opens the last error of the cell.
        """
        hook, last = sys.excepthook, {name: vars(sys)[name] for name in _LAST if name in vars(sys)}
        sys.excepthook = sys.__excepthook__
        try:
            with contextlib.suppress(SystemExit):
                self._interact(self.curframe)
        finally:
            sys.excepthook = hook
            for name in _LAST:
                vars(sys).pop(name, None)
            vars(sys).update(last)

    def _interact(self, frame: types.FrameType | None) -> None:
        if frame is None:
            return
        own: Any = frame.f_locals if sys.version_info >= (3, 13) else self.curframe_locals
        names = {**frame.f_globals, **own}
        before = dict(names)
        try:
            code.interact("*interactive*", local=names)
        finally:
            changed = {n for n in names if n not in before or names[n] is not before[n]}
            own.update({name: names[name] for name in changed - {"__builtins__"}})
            if own is frame.f_globals:
                for name in before.keys() - names.keys():
                    own.pop(name, None)
            _keep_locals(frame)

    def do_run(self, arg: str) -> None:
        """Refuse to start the program again: pdb would end the cell."""
        self.message("this debugger does not start the cell again. Next: q, and run the cell again")

    do_restart = do_run

    def do_debug(self, arg: str) -> None:
        """Step through an expression in a debugger of its own; its errors end no cell."""
        trace = sys.gettrace()
        try:
            super().do_debug(arg)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - of the user's expression
            self._show(error)
            sys.settrace(trace)

    def _show(self, error: BaseException) -> None:
        """Show an error of a line as pdb does."""
        self.error(traceback.format_exception_only(error)[-1].strip())


class Breakpoint(UserStack):
    """The debugger of one `breakpoint()`."""

    def __init__(self, **streams: Any) -> None:  # ``debug`` opens another one with its streams
        # The stop button interrupts the cell also after ``c``.
        super().__init__(nosigint=True, **streams)

    def open(self, frame: types.FrameType) -> None:
        """Ask for commands in ``frame``; return when the program goes on.

        Python 3.13 and later stop there by themselves. Before, the event after `breakpoint()` may
        be the return of its statement, so the debugger asks before it traces.

        Raises:
            bdb.BdbQuit: the user has left the debugger.
        """
        if sys.version_info >= (3, 13):
            super().set_trace(frame)
            return
        self.reset()
        self.interaction(frame, None)
        if self.quitting:
            raise bdb.BdbQuit
        stop_frame, return_frame, stop_line = self.stopframe, self.returnframe, self.stoplineno
        goes_on = stop_frame is None and stop_line == _NEVER
        if goes_on and not self.breaks:
            return
        super().set_trace(frame)
        self.stopframe = self.botframe if goes_on else stop_frame
        self.returnframe, self.stoplineno = return_frame, stop_line

    def stop_here(self, frame: types.FrameType) -> bool:
        """Return whether a step ends in ``frame``. Called by `bdb.Bdb`."""
        if _is_machinery(frame) or (self.stopframe is None and not _is_in_cell(frame)):
            return False
        return bool(super().stop_here(frame))

    def user_call(self, frame: types.FrameType, argument_list: Any) -> None:
        """Stop at a call, unless a statement of a cell begins: its line comes next."""
        if not _is_statement(frame):
            super().user_call(frame, argument_list)

    def user_return(self, frame: types.FrameType, return_value: Any) -> None:
        """Stop at a return, unless a statement of a cell ends: the next one follows."""
        if not _is_statement(frame):
            super().user_return(frame, return_value)

    def user_exception(self, frame: types.FrameType, exc_info: Any) -> None:
        """Stop at an exception, unless it only tells the machinery that a coroutine has ended."""
        if not _is_machinery(frame):
            super().user_exception(frame, exc_info)
        elif self.stopframe is not None and not _is_machinery(self.stopframe):
            self.set_step()  # a statement with ``await`` has ended: the next one follows


class StopDebugger(UserStack):
    """The debugger of a rank that has stopped before an operation: no command lets it go on.

    The rank would go on only in the operation, for which others have to be let go, too.

    Args:
        rank: this rank.
    """

    def __init__(self, rank: int) -> None:
        super().__init__(nosigint=True)
        self._rank = rank

    def open(self, frame: types.FrameType) -> None:
        """Ask for commands in ``frame``; return when the user has left the debugger."""
        self.reset()
        self.interaction(frame, None)

    def onecmd(self, line: str) -> bool:
        """Do what a line says, unless the program would go on. Called by `cmd.Cmd`."""
        command, argument, _ = self.parseline(line)
        if command in _GO:
            self.message(
                f"rank {self._rank} has stopped before an operation, and does not go on from this "
                f"debugger. Next: q comes back to (step); there: step -r {self._rank}, or continue"
            )
            return False
        if command in _BREAK and argument:
            self.message("this debugger sets no breakpoints. Next: %ddp break, before the cell")
            return False
        if command == _DEBUG:
            self.message(
                "this debugger steps through no code. Next: p EXPR, or breakpoint() in the cell"
            )
            return False
        if command in OF_ALL_RANKS and self._is_no_code(line, command):
            self.message(
                f"{command} is a command of (step), the prompt for all ranks. Next: q comes back "
                "to it"
            )
            return False
        return super().onecmd(line)

    def _is_no_code(self, line: str, name: str) -> bool:
        """Whether a line that begins with a name is no Python that could run here."""
        frame = self.curframe
        is_known = frame is not None and (
            name in frame.f_locals or name in frame.f_globals or hasattr(builtins, name)
        )
        try:
            ast.parse(line.strip())
        except SyntaxError:
            return True
        return not is_known and line.strip() == name

    def get_names(self) -> list[str]:
        """Return the names that ``help`` and the completion read. Called by `cmd.Cmd`."""
        refused = {f"do_{command}" for command in (*_GO, _DEBUG)}
        return [each for each in super().get_names() if each not in refused]


def install(shell: InteractiveShell, cell_ranks: Callable[[], Sequence[int]]) -> None:
    """Make `breakpoint()` and the functions that it stands for open a `Breakpoint`.

    Args:
        shell: runs the cells.
        cell_ranks: returns the ranks of the running cell; empty: all.
    """
    sys.breakpointhook = pdb.set_trace = debugger.set_trace = _set_trace
    dist.breakpoint = _on_one_rank(dist.breakpoint, cell_ranks)

    class PostMortem(UserStack, shell.debugger_cls):  # type: ignore[misc, name-defined]
        """The debugger of ``%debug``."""

    shell.InteractiveTB.debugger_cls = PostMortem


def open_debugger(frame: types.FrameType) -> None:
    """Ask for commands in a frame, as `breakpoint()` there would.

    Raises:
        bdb.BdbQuit: the user has left the debugger.
    """
    Breakpoint().open(frame)


def open_stop_debugger(frame: types.FrameType, rank: int) -> None:
    """Ask for commands in the frame of a line that has called a stopped operation."""
    StopDebugger(rank).open(frame)


def end_steps() -> None:
    """End a step that has not ended with its cell; breakpoints that the user has set stay."""
    tracer = getattr(sys.gettrace(), "__self__", None)
    if isinstance(tracer, Breakpoint):
        tracer.set_continue()


def asking_debugger(frame: types.FrameType) -> Site | None:
    """Return the line that a debugger is at, if ``frame`` is its prompt; else None."""
    asking = frame.f_locals.get("self") if frame.f_code is cmd.Cmd.cmdloop.__code__ else None
    if not isinstance(asking, pdb.Pdb) or not asking.stack:
        return None
    at, line = asking.stack[asking.curindex]
    return code_sites.site_at(at.f_code, line, code_sites.cell_of(at.f_code.co_filename))


def _keep_locals(frame: types.FrameType | None) -> None:
    """Give the variables of a function the values that they have in its `f_locals`.

    Python before 3.13 does that after a trace function only, and a prompt opens in `breakpoint()`.
    """
    if sys.version_info < (3, 13) and frame is not None:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        _ = frame.f_locals  # without this, the next call would do nothing


def _set_trace(
    frame: types.FrameType | None = None,
    header: str | None = None,
    commands: Iterable[str] | None = None,
) -> None:
    opened = Breakpoint()
    if header is not None:
        opened.message(header)
    opened.rcLines.extend(commands or ())
    opened.open(frame or sys._getframe(1))


def _on_one_rank(
    original: Callable[..., None], cell_ranks: Callable[[], Sequence[int]]
) -> Callable[..., None]:
    """Return ``torch.distributed.breakpoint`` with a prompt in the frame of its caller.

    The other ranks wait in its barrier, as with torch. A rank that leaves its prompt by ``q`` never
    comes there: nbddp frees those that wait for it. A cell of some ranks has no barrier.
    """
    calls: Counter[tuple[str, int]] = Counter()  # by file and line: each cell has a file of its own

    @functools.wraps(original)
    def breakpoint_on(rank: int = 0, skip: int = 0, timeout_s: float | None = 3600) -> None:
        frame = sys._getframe(1)
        place = frame.f_code.co_filename, frame.f_lineno
        calls[place] += 1
        if calls[place] <= skip:
            return
        if dist.get_rank() == rank:
            open_debugger(frame)
        if not cell_ranks():
            original(-1, timeout_s=timeout_s)  # opens nothing: longer timeouts, and the barrier

    return breakpoint_on


def _is_machinery(frame: types.FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _MACHINERY


def _is_cell(frame: types.FrameType) -> bool:
    return bool(code_sites.cell_of(frame.f_code.co_filename))


def _is_in_cell(frame: types.FrameType | None) -> bool:
    """Return whether a cell has called ``frame``, and not the code that runs cells."""
    while frame is not None:
        if _is_cell(frame):
            return True
        frame = frame.f_back
    return False


def _is_statement(frame: types.FrameType) -> bool:
    """Return whether it is a whole statement of a cell."""
    return frame.f_code.co_name.startswith(("<module>", "<cell line")) and _is_cell(frame)
