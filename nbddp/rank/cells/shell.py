"""The IPython shell of a rank.

Runs in: the rank process, main thread. An `InteractiveShell` without a kernel around it: results,
displays and tracebacks become messages, everything else is IPython's own.
"""

import asyncio
import base64
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
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
from nbddp.rank import code_sites, exception_text, streams
from nbddp.rank.agent_link import Link
from nbddp.rank.cells import output_capture, source_lookup
from nbddp.rank.user_code_context import Callbacks
from nbddp.wire.flight_recorder.schema import CONSOLE
from nbddp.wire.messages import ClearOutput, Display, Execute, Result, RunId
from nbddp.wire.rank_set import RankSet

if TYPE_CHECKING:
    from nbddp.wire.message_types import ErrorInfo

_OWN_FOLDER = str(Path(nbddp.__file__).parent)
_DEBUGGER = "/debugpy/"
_TORCH_FOLDER = str(Path(torch.__file__).parent)
_IPYTHON_FOLDER = str(Path(IPython.__file__).parent)


class CellCompiler(CachingCompiler):
    """Numbers lines as in the notebook, where the ``%%ddp`` line stands above the code.

    IPython drops empty lines at the top of a cell, so padding the source is not enough: the
    syntax tree is moved down, and the source that tracebacks quote is padded to match.
    """

    first_line = 1
    #: Gives the file name of a cell with this text; None: IPython's own.
    name_of: Callable[[str], str] | None = None
    _cell_name = ""

    def format_code_name(self, name: str) -> tuple[str, str] | None:
        """How tracebacks call it; what has no number was typed in `nbddp console`."""
        if self._filename_map.get(name) == 0:
            return "Console", "cell"
        return super().format_code_name(name)

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        """The file name under which tracebacks and debuggers know a cell."""
        if self.name_of is not None:
            return self.name_of(raw_code)
        return str(super().get_code_name(raw_code, transformed_code, number))

    def cache(self, transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        """Remember the source for tracebacks."""
        padding = "\n" * (self.first_line - 1)
        raw_code = transformed_code if raw_code is None else raw_code
        self._cell_name = super().cache(padding + transformed_code, number, raw_code=raw_code)
        return self._cell_name

    def ast_parse(self, source: str, filename: str = "<unknown>", symbol: str = "exec") -> Any:
        """Compile to a syntax tree; that of the cell itself is moved to its place."""
        if filename == self._cell_name:
            source = "\n" * (self.first_line - 1) + source
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
        """Send a MIME bundle, after everything printed so far."""
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
        """The notebook writes it, once for all ranks with the same value."""

    def write_format_data(
        self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None
    ) -> None:
        """Send the value as a MIME bundle."""
        self.shell.link.send_in_order(
            Result(
                run_id=self.shell.run_id,
                rank=self.shell.rank,
                data=_jsonable(format_dict),
                metadata=md_dict or {},
            )
        )

    def finish_displayhook(self) -> None:
        """Nothing was written to standard output, so there is no line to end."""


class _Exit(ExitAutocall):
    """``exit`` and ``quit``, with and without parentheses: the cell ends, the rank stays."""

    def __call__(self, code: object = None) -> None:
        raise SystemExit(code)


class RankShell(InteractiveShell):
    """Runs cells; never asks a terminal, never writes a history file."""

    display_pub_class = Type(RankDisplayPublisher)
    displayhook_class = Type(RankDisplayHook)
    compiler_class = Type(CellCompiler)

    def __init__(self, link: Link, rank: int) -> None:
        self.link = link
        self.rank = rank
        self.run_id: RunId | None = None
        self.last_error: ErrorInfo | None = None
        #: Of the front end's request; empty: no front end, or none that shows widgets.
        self.parent_id = ""
        #: Where a bare ``%debug`` opens; empty: on all ranks.
        self.debugs: tuple[int, ...] = ()
        self.callbacks = Callbacks()
        self._left: tuple[BaseException, BaseException | None] | None = None  #: see `debugger`
        #: Keeps interrupts away while a traceback is written; see `Interrupts.held`.
        self.hold_interrupts: Callable[[], AbstractContextManager[None]] = nullcontext
        #: Names that are always there, after ``%reset`` too.
        self.predefined: dict[str, Any] = {}
        config = Config()
        config.HistoryManager.enabled = False
        config.HistoryManager.hist_file = ":memory:"
        super().__init__(config=config, user_module=types.ModuleType("__main__"))
        code_sites.know_cells(self.cell_of)
        self.set_hook("show_in_pager", page.as_hook(self._show_in_pager), 99)
        # sys.exit() ends the cell here, so IPython's advice about it would mislead.
        warnings.filterwarnings("ignore", message="To exit: use")
        # An interrupt may come before IPython has begun with what it has made.
        warnings.filterwarnings("ignore", message="coroutine '.*run_cell_async' was never awaited")
        source_lookup.teach_inspect(lambda: list(self.compile._filename_map))

    def predefine(self, names: dict[str, Any]) -> None:
        """Put names into the user's namespace for good; ``%who`` does not list them."""
        self.predefined = names
        self.user_ns.update(names)
        self.user_ns_hidden.update(names)

    def init_user_ns(self) -> None:
        """Called at the start and by ``%reset``."""
        super().init_user_ns()
        self.user_ns.update(self.predefined)
        self.user_ns_hidden.update(self.predefined)  # ``%reset`` empties this too

    def begin_cell(self, request: Execute, first_line: int) -> None:
        """What `RankShell.run_cell` runs next is this cell of the notebook."""
        self.run_id = request.run_id
        self.execution_count = request.execution_count
        self.parent_id = request.parent_id or self.parent_id
        self.debugs = request.debugs
        self.last_error = None
        self._forget_history()
        compiler = self.compile
        assert isinstance(compiler, CellCompiler)  # noqa: S101 - see compiler_class
        compiler.first_line = first_line

    def _forget_history(self) -> None:
        """IPython keeps what cells show for ``%notebook``, and has a database; ranks have neither.

        `In` and `Out` stay, and so does what ``%history`` shows.
        """
        history = self.history_manager
        for name in ("db_input_cache", "outputs", "exceptions"):
            getattr(history, name, []).clear()  # the last two came with IPython 9

    def name_cells(self, name_of: Callable[[str], str] | None) -> None:
        """From now on cells have these file names; None: those of IPython."""
        compiler = self.compile
        assert isinstance(compiler, CellCompiler)  # noqa: S101 - see compiler_class
        compiler.name_of = name_of

    def cell_of(self, file: str) -> int:
        """The execution count of the cell that a file name stands for, or `CONSOLE`; 0: no cell."""
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
        is_on_main_thread = threading.current_thread() is threading.main_thread()
        with self.hold_interrupts() if is_on_main_thread else nullcontext():
            self._note_error(exc_tuple, filename, tb_offset, exception_only, running_compiled_code)
            self._keep_error_of_user()
            source_lookup.forget_parsed(self.compile._filename_map.__contains__)

    def _note_error(self, exc_tuple: Any, *options: Any) -> None:
        error = self._get_exc_info(exc_tuple)[1]
        if isinstance(error, SystemExit | asyncio.CancelledError):
            return
        _cut_own_frames(error)
        with source_lookup.found_without_search(error):
            self._write_error(error, exc_tuple, *options)

    def _write_error(self, error: BaseException, exc_tuple: Any, *options: Any) -> None:
        if isinstance(error, KeyboardInterrupt):
            # The operation that was ended for it is no news.
            error.__context__ = error.__cause__ = None
        if isinstance(error, BaseExceptionGroup):
            lines = exception_text.group_lines(error, (_OWN_FOLDER, _IPYTHON_FOLDER))
            self._showtraceback(type(error), error, lines)
            return
        if self.callbacks.is_here:
            # How the front end's message came to the user's code is no news.
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
        error = exception_text.error_info(evalue, [str(line) for line in stb])
        captured = output_capture.current()
        if captured is not None:
            captured.error(error)
        elif self.callbacks.is_here:
            print("\n".join(error.traceback), file=sys.stderr)  # noqa: T201 - no cell ends with it
        else:
            self.last_error = error

    def _format_exception_for_storage(self, *_: Any, **__: Any) -> dict[str, Any]:
        """IPython 9 formats each error once more, for ``%notebook``: a rank keeps none of it."""
        return {}

    def show_usage_error(self, exc: BaseException) -> None:
        """A magic was called wrongly: an error of the cell, like any other."""
        self.last_error = exception_text.error_info(exc)

    def should_run_async(self, *args: Any, **kwargs: Any) -> bool:
        """Compiles the cell to see; what the compiler warns of it says again when the cell runs."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return bool(super().should_run_async(*args, **kwargs))

    def system(self, cmd: str) -> None:
        """``!cmd``: a child with our pipes, in our process group, so that it streams and stops."""
        streams.flush_all()
        self.system_raw(cmd)

    @contextmanager
    def _tee(self, channel: str) -> Iterator[None]:
        """IPython 9 keeps all that cells print, without limit, and triples the cost of a print."""
        yield

    @default("exiter")
    def _make_exiter(self) -> ExitAutocall:
        return _Exit(self)

    def debugger(self, force: bool = False) -> None:
        """``%debug``: IPython would say nothing of the rank, and open errors of long ago."""
        if force and self.debugs and self.rank not in self.debugs:
            print(  # noqa: T201 - this is the rank's standard output
                f"%debug opens on {RankSet.of(self.debugs).describe()}, which failed last; "
                "the last error of another rank: %ddp debug -r RANK"
            )
            return
        if force and getattr(sys, "last_traceback", None) is None:
            # Not raised: it would be the exception that the next `%debug` looks at.
            text = f"rank {self.rank} has raised no exception: there is nothing to debug"
            self.show_usage_error(UsageError(text))
            return
        looked_at = sys.last_value
        try:
            super().debugger(force)
        except BaseException as error:
            self._left = (error, looked_at)
            raise
        self._look_at(looked_at)  # not at an interrupt that has ended the debugger

    def _keep_error_of_user(self) -> None:
        """What has ended the debugger, and the cell, is not what the next one looks at."""
        left, self._left = self._left, None
        if left is not None and sys.last_value is left[0]:
            self._look_at(left[1])

    def _look_at(self, error: BaseException | None) -> None:
        if error is None:
            return
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        if sys.version_info >= (3, 12):
            sys.last_exc = error
        self.InteractiveTB.tb = error.__traceback__

    def set_next_input(self, s: str, replace: bool = False) -> None:
        """``%load`` and friends cannot write into the notebook; show the text instead."""
        print(s)  # noqa: T201 - this is the rank's standard output

    def enable_gui(self, gui: Any = None) -> None:
        """A rank has no window system."""

    def init_virtualenv(self) -> None:
        """The rank runs in the right environment already."""

    def _show_in_pager(
        self, data: Any, start: int = 0, screen_lines: int = 0, pager_cmd: Any = None
    ) -> None:
        bundle = data if isinstance(data, dict) else {"text/plain": data}
        self.display_pub.publish(bundle)


def _cut_own_frames(error: BaseException) -> None:
    """Leave out our frames within and below the user's.

    Below: where we raised, as the handler of an interrupt or `Stdin.ask` do. Within: what stands
    before a function of torch that calls the user's code, as before autograd's engine.
    """
    # The interrupted line of the user is enough, and torch has files that take a second to read.
    hidden = (_OWN_FOLDER, _TORCH_FOLDER) if isinstance(error, KeyboardInterrupt) else _OWN_FOLDER
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        found = waiting.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        while found.__context__ is not found.__cause__ and _is_caught_by_us(found.__context__):
            found.__context__ = found.__context__.__context__
        waiting += [found.__cause__, found.__context__]
        if isinstance(found, BaseExceptionGroup):
            waiting += found.exceptions
        last: types.TracebackType | None = None
        above: types.TracebackType | None = None
        traceback = found.__traceback__
        while traceback is not None:
            file = traceback.tb_frame.f_code.co_filename
            if _DEBUGGER in file:
                break  # interrupted at a breakpoint: how debugpy waits there is no news
            if above is not None and file.startswith(_OWN_FOLDER):
                above.tb_next = traceback.tb_next
            else:
                above = traceback
                last = last if file.startswith(hidden) else traceback
            traceback = traceback.tb_next
        if last is not None:
            last.tb_next = None


def _is_caught_by_us(error: BaseException | None) -> TypeGuard[BaseException]:
    """Not by the user: its way up has ended in one of our functions."""
    traceback = None if error is None else error.__traceback__
    return traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER)


def _jsonable(bundle: dict[str, Any]) -> dict[str, Any]:
    """Binary MIME data as base64, as Jupyter sends it."""
    return {
        mime: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for mime, value in bundle.items()
    }
