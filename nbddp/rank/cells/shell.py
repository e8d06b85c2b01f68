"""The IPython shell of a rank.

Runs in: the rank process, main thread. An `InteractiveShell` without a kernel around it: results,
displays and tracebacks become messages; all other behaviour is IPython's own.
"""

import asyncio
import base64
import os
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import IPython
import torch
from IPython.core import page
from IPython.core.autocall import ExitAutocall
from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type, default
from traitlets.config import Config

import nbddp
from nbddp.rank import code_sites, exception_text, random_draws, random_states, streams
from nbddp.rank.agent_link import Link
from nbddp.rank.cells import output_capture, source_lookup
from nbddp.rank.cells.library_frames import LibraryFrames
from nbddp.rank.cells.recursions import ShortRecursions
from nbddp.rank.user_code_context import Callbacks
from nbddp.wire.flight_recorder import CONSOLE
from nbddp.wire.messages import ClearOutput, Display, Execute, Result, RunId
from nbddp.wire.rank_set import RankSet

if TYPE_CHECKING:
    from nbddp.wire.message_types import ErrorInfo

#: With the separator: ``torch`` is the beginning of ``torchvision``, too.
_OWN_FOLDER, _TORCH_FOLDER, _IPYTHON_FOLDER = (
    f"{Path(str(module.__file__)).parent}{os.sep}" for module in (nbddp, torch, IPython)
)
_DEBUGGER = "/debugpy/"


class CellCompiler(CachingCompiler):
    """Numbers lines as in the notebook, where the ``%%ddp`` line stands above the code.

    IPython drops empty lines at the top of a cell, so padding the source is not enough: the
    syntax tree is moved down, and the source that tracebacks quote is padded to match.
    """

    _lines_above = 0
    _number = 0
    _is_nested = False
    #: Returns the file name of a cell with this text; None: IPython names cells itself.
    name_of: Callable[[str], str] | None = None
    _cell_name = ""
    _padding = ""

    def begin_cell(self, number: int, first_line: int) -> None:
        """Number the next cell; ``first_line`` is the line of the notebook's cell that it is at."""
        self._number = number
        self._lines_above = first_line - 1
        self._is_nested = False

    def format_code_name(self, name: str) -> tuple[str, str] | None:
        """Return the name in tracebacks; cells of `nbddp console` have no number."""
        if self._filename_map.get(name) == 0:
            return "Console", "cell"
        return super().format_code_name(name)

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        """Return the file name of a cell for tracebacks and debuggers."""
        if self.name_of is not None:
            return self.name_of(raw_code)
        return str(super().get_code_name(raw_code, transformed_code, number))

    def cache(self, transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        """Remember the source for tracebacks."""
        if self._is_nested and number in (self._number, self._number + 1):
            # A magic such as ``%%capture`` runs the lines below it as a cell of its own. IPython 9
            # has counted the cell around them already.
            number = self._number
            padding = "\n" * (self._lines_above + 1)
        else:
            padding = "\n" * self._lines_above
        self._is_nested = True
        self._padding = padding
        raw_code = transformed_code if raw_code is None else raw_code
        self._cell_name = super().cache(padding + transformed_code, number, raw_code=raw_code)
        return self._cell_name

    def ast_parse(self, source: str, filename: str = "<unknown>", symbol: str = "exec") -> Any:
        """Compile to a syntax tree; the tree of the cell itself is moved down to its lines."""
        if filename == self._cell_name:
            source = self._padding + source
        return super().ast_parse(source, filename, symbol)


class RankDisplayPublisher(DisplayPublisher):
    """``display()``, ``update_display`` and ``clear_output``."""

    shell: "RankShell"

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        source: Any = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_: Any,
    ) -> None:
        """Send a MIME bundle, after all text printed so far."""
        self.shell.before_display(data)
        captured = output_capture.current()
        if captured is not None:
            display_id = (transient or {}).get("display_id")
            captured.display(_jsonable(data), metadata or {}, display_id, update)
            return
        self.shell.link.send_in_order(
            Display(
                run_id=self.shell.run_id,
                rank=self.shell.rank,
                data=_jsonable(data),
                metadata=metadata or {},
                transient=transient or {},
                update=update,
            )
        )

    def clear_output(self, wait: bool = False) -> None:
        """Clear what this rank has shown in the cell."""
        captured = output_capture.current()
        if captured is not None:
            captured.clear(wait)
            return
        self.shell.link.send_in_order(
            ClearOutput(run_id=self.shell.run_id, rank=self.shell.rank, wait=wait)
        )


class RankDisplayHook(DisplayHook):
    """The value of a cell's last expression."""

    shell: "RankShell"

    def write_output_prompt(self) -> None:
        """Write nothing: the notebook writes it once for all ranks with the same value."""

    def write_format_data(
        self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None
    ) -> None:
        """Send the value as a MIME bundle."""
        self.shell.before_display(format_dict)
        self.shell.link.send_in_order(
            Result(
                run_id=self.shell.run_id,
                rank=self.shell.rank,
                data=_jsonable(format_dict),
                metadata=md_dict or {},
            )
        )

    def finish_displayhook(self) -> None:
        """Do nothing: no text was written to standard output, so there is no line to end."""


class _Exit(ExitAutocall):
    """``exit`` and ``quit``, with and without parentheses: the cell ends, the rank stays."""

    def __call__(self, code: object = None) -> None:
        raise SystemExit(code)


class RankShell(InteractiveShell):
    """Runs cells; never reads a terminal, never writes a history file."""

    display_pub_class = Type(RankDisplayPublisher)
    displayhook_class = Type(RankDisplayHook)
    compiler_class = Type(CellCompiler)

    def __init__(self, link: Link, rank: int) -> None:
        self.link = link
        self.rank = rank
        self.run_id: RunId | None = None
        self.last_error: ErrorInfo | None = None
        self.raised_at = 0.0  #: monotonic time of the last error, before it was formatted
        #: Called with an error of the user's code before it is formatted.
        self.before_report: Callable[[BaseException | None], None] = lambda error: None
        #: Id of the front end's request; empty: there is no front end that shows widgets.
        self.parent_id = ""
        #: Called with each MIME bundle that is shown.
        self.before_display: Callable[[Mapping[str, Any]], None] = lambda data: None
        #: Called when the code of a cell has ended. Users clear the callbacks of IPython.
        self.after_cell: Callable[[], None] = lambda: None
        #: Ranks on which a bare ``%debug`` opens; empty: all ranks.
        self.debugs: tuple[int, ...] = ()
        self.cell_ranks: tuple[int, ...] = ()  #: that run the cell; empty: all
        self.callbacks = Callbacks()
        #: The exception that has ended a debugger, and the user's error that it was opened on.
        self._debugger_error: tuple[BaseException, BaseException | None] | None = None
        #: Ignores interrupts while a traceback is written; see `Interrupts.held`.
        self.hold_interrupts: Callable[[], AbstractContextManager[None]] = nullcontext
        #: The namespace beside the user's, and its id.
        self._aside: tuple[str, types.ModuleType] | None = None
        self._aside_random: dict[str, Any] = {}  # the states of its generators
        #: The draws of cells that run again in the user's namespace, and the id of their catch-up.
        self._draws: tuple[str, random_draws.Draws] | None = None
        self._is_again = False  # the cell is one of these
        #: Names that always exist, also after ``%reset``.
        self.predefined: dict[str, Any] = {}
        config = Config()
        config.HistoryManager.enabled = False
        config.HistoryManager.hist_file = ":memory:"
        super().__init__(config=config, user_module=types.ModuleType("__main__"))
        self._library_frames = LibraryFrames(self.InteractiveTB)
        self._short_recursions = ShortRecursions(self.InteractiveTB)
        code_sites.know_cells(self.cell_of)
        self.set_hook("show_in_pager", page.as_hook(self._show_in_pager), 99)
        # sys.exit() ends the cell here, so IPython's advice about it would mislead.
        warnings.filterwarnings("ignore", message="To exit: use")
        # An interrupt may arrive before IPython has begun to run the coroutine that it has made.
        warnings.filterwarnings("ignore", message="coroutine '.*run_cell_async' was never awaited")
        source_lookup.extend_inspect(lambda: list(self.compile._filename_map))

    def predefine(self, names: dict[str, Any]) -> None:
        """Put names into the user's namespace permanently; ``%who`` does not list them."""
        self.predefined = names
        self.user_ns.update(names)
        self.user_ns_hidden.update(names)

    def init_user_ns(self) -> None:
        """Fill the user's namespace. Called at the start and by ``%reset``."""
        super().init_user_ns()
        self.user_ns.update(self.predefined)
        self.user_ns_hidden.update(self.predefined)  # ``%reset`` empties this too

    def begin_cell(self, request: Execute, first_line: int) -> None:
        """Begin a cell of the notebook, which `RankShell.run_cell` runs next."""
        self.run_id = request.run_id
        self.execution_count = request.execution_count
        self.parent_id = request.parent_id or self.parent_id
        self.debugs = request.debugs
        self.cell_ranks = request.ranks
        self.last_error = None
        self.raised_at = 0.0
        self._forget_history()
        compiler = self.compile
        assert isinstance(compiler, CellCompiler)  # noqa: S101 - see compiler_class
        compiler.begin_cell(request.execution_count, first_line)

    @contextmanager
    def namespace_of(self, request: Execute) -> Iterator[None]:
        """Run a cell in the user's namespace, or aside, see `Execute.aside`."""
        if self._aside is not None and self._aside[0] != request.aside_id:
            self._aside, self._aside_random = None, {}
        if self.rank not in request.aside:
            self._is_again = bool(request.aside_id)
            if request.aside_id and (self._draws is None or self._draws[0] != request.aside_id):
                self._draws = request.aside_id, random_draws.Draws(self.user_ns)
            try:
                yield
            finally:
                self._is_again = False
            return
        if self._aside is None:
            self._aside = request.aside_id, types.ModuleType("__main__")
        users = self.user_module, self.user_ns
        hidden = dict(self.user_ns_hidden)
        users_random = random_states.take()
        random_states.put(self._aside_random)
        self.user_module = self._aside[1]
        self.user_ns = self.user_module.__dict__
        try:
            if "In" not in self.user_ns:
                self.init_user_ns()
            yield
        finally:
            self._aside_random = random_states.take()
            random_states.put(users_random)
            self.user_module, self.user_ns = users
            self.user_ns_hidden.clear()
            self.user_ns_hidden.update(hidden)

    @property
    def draws(self) -> random_draws.Draws | None:
        """The draws of the cells of the last catch-up in the user's namespace; None: no such."""
        return self._draws[1] if self._draws is not None else None

    async def run_code(self, code_obj: Any, result: Any = None, *, async_: bool = False) -> bool:
        """Run a statement of a cell; the draws of one that runs again are noted."""
        if not self._is_again or self._draws is None:
            return bool(await super().run_code(code_obj, result, async_=async_))
        with self._draws[1].watching(code_obj):
            return bool(await super().run_code(code_obj, result, async_=async_))

    def _forget_history(self) -> None:
        """Drop outputs that IPython keeps for ``%notebook`` and its database; ranks have neither.

        `In` and `Out` stay, and so does the text that ``%history`` shows.
        """
        history = self.history_manager
        for name in ("db_input_cache", "outputs", "exceptions"):
            getattr(history, name, []).clear()  # the last two came with IPython 9

    def name_cells(self, name_of: Callable[[str], str] | None) -> None:
        """Name the files of cells by ``name_of``; None: IPython names them."""
        compiler = self.compile
        assert isinstance(compiler, CellCompiler)  # noqa: S101 - see compiler_class
        compiler.name_of = name_of

    def cell_of(self, file: str) -> int:
        """Return the execution count of the cell with this file name, or `CONSOLE`; 0: no cell."""
        number = self.compile._filename_map.get(file)
        return 0 if number is None else int(number) or CONSOLE

    def showtraceback(
        self,
        exc_tuple: Any = None,
        filename: Any = None,
        tb_offset: Any = None,
        exception_only: bool = False,
        running_compiled_code: bool = False,
    ) -> None:
        """Note the traceback for `RunFinished`; `SystemExit` has none."""
        self.before_report(self._get_exc_info(exc_tuple)[1])
        self.raised_at = time.monotonic()
        is_on_main_thread = threading.current_thread() is threading.main_thread()
        with self.hold_interrupts() if is_on_main_thread else nullcontext():
            self._note_error(exc_tuple, filename, tb_offset, exception_only, running_compiled_code)
            self._restore_user_error()
            source_lookup.forget_parsed(self.compile._filename_map.__contains__)

    def _note_error(self, exc_tuple: Any, *options: Any) -> None:
        error = self._get_exc_info(exc_tuple)[1]
        if isinstance(error, SystemExit | asyncio.CancelledError):
            return
        _cut_own_frames(error)
        with source_lookup.cells_in_main_module(error):
            self._write_error(error, exc_tuple, *options)

    def _write_error(self, error: BaseException, exc_tuple: Any, *options: Any) -> None:
        if isinstance(error, KeyboardInterrupt):
            # The error of the operation that the interrupt has ended is not shown.
            error.__context__ = error.__cause__ = None
        if isinstance(error, BaseExceptionGroup):
            lines = exception_text.group_lines(error, (_OWN_FOLDER, _IPYTHON_FOLDER))
            self._showtraceback(type(error), error, lines)
            return
        if self.callbacks.is_in_callback:
            # The frames between the front end's message and the user's code are not shown.
            error = error.with_traceback(self._from_cell_on(error.__traceback__))
            filename, _, *more = options
            super().showtraceback((type(error), error, error.__traceback__), filename, 0, *more)
            return
        super().showtraceback(exc_tuple, *options)

    def _from_cell_on(self, traceback: types.TracebackType | None) -> types.TracebackType | None:
        first = traceback
        while first is not None and not self.cell_of(first.tb_frame.f_code.co_filename):
            first = first.tb_next
        return first or traceback

    def _showtraceback(self, etype: Any, evalue: Any, stb: list[str]) -> None:
        lines = [str(line) for line in stb]
        libraries = self._library_frames.take(lines)
        error = exception_text.error_info(evalue, lines, libraries)
        captured = output_capture.current()
        if captured is not None:
            captured.error(error)
        elif self.callbacks.is_in_callback:
            print("\n".join(error.traceback), file=sys.stderr)  # noqa: T201 - no cell ends with it
        else:
            self.last_error = error

    def _format_exception_for_storage(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return nothing: IPython 9 would format each error again for ``%notebook``."""
        return {}

    def show_usage_error(self, exc: BaseException) -> None:
        """Note the wrong use of a magic as an error of the cell."""
        self.last_error = exception_text.error_info(exc)

    def should_run_async(self, *args: Any, **kwargs: Any) -> bool:
        """Compile the cell to decide, without warnings: the compiler repeats them in the run."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return bool(super().should_run_async(*args, **kwargs))

    def system(self, cmd: str) -> None:
        """Run ``!cmd`` as a child with our pipes, in our process group, so it streams and stops."""
        streams.flush_all()
        self.system_raw(cmd)

    @contextmanager
    def _tee(self, channel: str) -> Iterator[None]:
        """Do nothing: IPython 9 would keep all printed text, and triple the cost of a print."""
        yield

    @default("exiter")
    def _make_exiter(self) -> ExitAutocall:
        return _Exit(self)

    def debugger(self, force: bool = False) -> None:
        """Open ``%debug``; IPython alone would not name the rank, and would open old errors."""
        if force and self.debugs and self.rank not in self.debugs:
            print(  # noqa: T201 - this is the rank's standard output
                f"%debug opens on {RankSet.of(self.debugs).describe()}, which failed last; "
                "the last error of another rank: %ddp debug -r RANK"
            )
            return
        if force and getattr(sys, "last_traceback", None) is None:
            # It is not raised, or it would be the exception that the next `%debug` opens.
            text = f"rank {self.rank} has raised no exception: there is nothing to debug"
            self.show_usage_error(UsageError(text))
            return
        debugged = sys.last_value
        try:
            super().debugger(force)
        except BaseException as error:
            self._debugger_error = (error, debugged)
            raise
        self._set_last_error(debugged)  # an interrupt of the debugger may have replaced it

    def _restore_user_error(self) -> None:
        """Restore the user's error after an exception that has ended the debugger, and the cell."""
        debugger_error, self._debugger_error = self._debugger_error, None
        if debugger_error is not None and sys.last_value is debugger_error[0]:
            self._set_last_error(debugger_error[1])

    def _set_last_error(self, error: BaseException | None) -> None:
        if error is None:
            return
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        if sys.version_info >= (3, 12):
            sys.last_exc = error
        self.InteractiveTB.tb = error.__traceback__

    def set_next_input(self, s: str, replace: bool = False) -> None:
        """Print the text, because ``%load`` and similar magics cannot write into the notebook."""
        print(s)  # noqa: T201 - this is the rank's standard output

    def enable_gui(self, gui: Any = None) -> None:
        """Do nothing: a rank has no window system."""

    def init_virtualenv(self) -> None:
        """Do nothing: the rank runs in the right environment already."""

    def _show_in_pager(
        self, data: Any, start: int = 0, screen_lines: int = 0, pager_cmd: Any = None
    ) -> None:
        bundle = data if isinstance(data, dict) else {"text/plain": data}
        self.display_pub.publish(bundle)


def _cut_own_frames(error: BaseException) -> None:
    """Remove our frames between and below the user's frames.

    Frames below are those of our code that raised, such as the handler of an interrupt or
    `Stdin.ask`. Frames between are those of our wrappers around a function of torch that calls the
    user's code, such as autograd's engine.
    """
    # The interrupted line of the user is enough; some files of torch take a second to read.
    hidden = (_OWN_FOLDER, _TORCH_FOLDER) if isinstance(error, KeyboardInterrupt) else _OWN_FOLDER
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        while current.__context__ is not current.__cause__ and _is_caught_by_own_code(
            current.__context__
        ):
            current.__context__ = current.__context__.__context__
        waiting += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            waiting += current.exceptions
        last: types.TracebackType | None = None
        above: types.TracebackType | None = None
        traceback = current.__traceback__
        while traceback is not None:
            file = traceback.tb_frame.f_code.co_filename
            if _DEBUGGER in file:
                break  # interrupted at a breakpoint: the frames of debugpy are not shown
            if above is not None and file.startswith(_OWN_FOLDER):
                above.tb_next = traceback.tb_next
            else:
                above = traceback
                last = last if file.startswith(hidden) else traceback
            traceback = traceback.tb_next
        if last is not None:
            last.tb_next = None


def _is_caught_by_own_code(error: BaseException | None) -> TypeGuard[BaseException]:
    """Return whether one of our functions, and not the user, has caught ``error``."""
    traceback = None if error is None else error.__traceback__
    return traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER)


def _jsonable(bundle: dict[str, Any]) -> dict[str, Any]:
    """Encode binary MIME data as base64, as Jupyter does."""
    return {
        mime: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for mime, value in bundle.items()
    }
