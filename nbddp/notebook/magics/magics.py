"""The magics ``%ddp`` and ``%%ddp``: they read a line, call the pool and show the result.

Runs in: the notebook's process, thread of the running cell.
"""

import threading
from functools import partial
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool import CellOptions, Pool
from nbddp.controller.state import checks_of
from nbddp.errors import BadOptionError, PoolBusyError
from nbddp.notebook import front_end_request, session, source_check
from nbddp.notebook.magics import auto_mode, inspect_verbs, installers, pool_verbs
from nbddp.notebook.magics.async_handle import CellHandle
from nbddp.notebook.magics.cell_line import parse_cell
from nbddp.notebook.magics.chosen_ranks import chosen_ranks
from nbddp.notebook.magics.verbs import find_verb
from nbddp.wire.fault_grammar import parse_faults
from nbddp.wire.flight_recorder import cell_name


@magics_class
class DdpMagics(Magics):
    """The two magics of nbddp."""

    shell: InteractiveShell

    @line_magic("ddp")  # type: ignore[arg-type]  # IPython types its decorators for classes only
    def line(self, line: str) -> Any:
        """Manage the pool; ``%ddp help`` lists the verbs."""
        session.await_start()
        verb, text = find_verb(line)
        if verb.name not in ("start", "listen", "attach"):
            return verb.run(self.shell, text)
        written = f"%ddp {verb.name} {text}".rstrip()
        with session.failed_start.noted(written, lambda: session.current_pool() is not None):
            return verb.run(self.shell, text)

    @cell_magic("ddp")  # type: ignore[arg-type]  # as above
    def cell(self, line: str, cell: str, *, first_line: int = 2) -> Any:
        """Run the cell on the ranks of the pool; see ``%ddp help``.

        Args:
            line: the options behind ``%%ddp``.
            cell: the code.
            first_line: the number of the notebook cell's line on which the code begins.

        Returns:
            A `CellHandle` with ``--async``; None otherwise.
        """
        running = session.current_pool()
        command = parse_cell(line, None if running is None else running.world_size)
        if threading.current_thread() is not threading.main_thread():
            raise PoolBusyError(
                "%%ddp runs on the notebook's main thread only, one cell after another; "
                "for work in the background use %%ddp --async"
            )
        if cell.lstrip().startswith("%%ddp"):
            raise BadOptionError("%%ddp stands twice. Next: delete one of the two lines")
        if "%ddp" in cell and "%ddp" in auto_mode.notebook_magics(cell):
            above = f"%%ddp {line}".strip()
            raise BadOptionError(auto_mode.mixed_refusal(cell, ranks_line=above))
        has_shown = session.await_start()
        count = front_end_request.execution_count(self.shell)
        source_check.check(self.shell, cell, first_line=first_line, execution_count=count)
        current = session.current_pool()
        if current is None:
            session.failed_start.refuse()
        expected = session.last_options() or PoolOptions()
        world_size = expected.world_size if current is None else current.world_size
        ranks = chosen_ranks(command.ranks)
        faults = () if command.fault is None else parse_faults(command.fault, world_size)
        # The line about the start of a pool is output of this cell, too.
        is_alone = current is not None and not has_shown and front_end_request.is_whole_cell(cell)
        pool = self._pool_or_default()
        code = installers.run_once(self.shell, cell)
        is_alone = is_alone and code is cell
        options = CellOptions(
            ranks=ranks,
            timeout_s=command.timeout_s,
            execution_count=count,
            first_line=first_line,
            cell_name=cell_name(count),
            check=command.check,
            step=command.step,
            faults=faults,
            sanitize="on" in checks_of(command.sanitize),
            sanitize_data="data" in checks_of(command.sanitize),
            asks=not command.is_async,
            parent_id=front_end_request.parent_id(),
        )
        if command.is_async:
            if session.break_points:
                print("a cell with --async asks nothing: break points do not stop it")
            run = pool.submit(code, options)
            with pool.given_up_on_failure(run):
                view = session.make_view(pool, run, background=True, out=command.out, cell=count)
                return CellHandle(pool, run, view, options.cell_name)
        try:
            make_view = partial(
                session.make_view,
                out=command.out,
                is_alone=is_alone,
                cell=count,
                has_panel=command.panel,
            )
            pool.run_cell(code, options, make_view)
        finally:
            if command.trace:
                inspect_verbs.show_summary(pool, count)
        return None

    def _pool_or_default(self) -> Pool:
        pool = session.current_pool()
        if pool is None:
            is_auto = auto_mode.current(self.shell).options is not None
            pool = session.start_like_last(
                lambda pool: (
                    "no pool was running, so one was started: "
                    + pool_verbs.introduction(pool, is_auto=is_auto)
                )
            )
        return pool
