"""``%ddp`` and ``%%ddp``: parse, call, show; no logic of their own.

Runs in: the notebook's process, thread of the running cell.
"""

import threading
from functools import partial
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class

from nbddp.controller.pool.options import PoolOptions
from nbddp.controller.pool.pool import CellOptions, Pool
from nbddp.errors import BadOptionError, PoolBusyError, PoolInterruptedError, TransferError
from nbddp.notebook import session, source_check
from nbddp.notebook.magics import (
    auto_mode,
    command_line,
    debug_verbs,
    inspect_verbs,
    interrupt_verbs,
)
from nbddp.notebook.magics.async_handle import CellHandle
from nbddp.notebook.magics.help_text import HELP
from nbddp.notebook.render import status_table
from nbddp.wire.flight_recorder.schema import cell_name
from nbddp.wire.rank_set import RankSet


def _switch_auto(shell: InteractiveShell, words: list[str]) -> str:
    command, pool = command_line.parse_auto(words), session.current_pool()
    if pool is not None and command is not None and command.options is not None:
        pool.rank_set(
            command_line.parse_cell(command.options).ranks
        )  # refused here, not in each cell
    return auto_mode.switch(shell, words)


#: Verbs that change something of the notebook, and tell it.
_TELLERS = {"auto": _switch_auto, "debugger": debug_verbs.choose}


@magics_class
class DdpMagics(Magics):
    """The two magics of nbddp."""

    shell: InteractiveShell

    @line_magic("ddp")  # type: ignore[arg-type]  # IPython types its decorators for classes only
    def line(self, line: str) -> Any:  # noqa: PLR0911 - one for each kind of answer
        """Manage the pool; ``%ddp help`` tells how."""
        session.await_start()
        if line.split(maxsplit=1)[:1] == ["pull"]:
            return self._pull(line)
        if inspect_verbs.is_on_values(line):
            inspect_verbs.run_on_values(line)
            return None
        verb, words = command_line.split_verb(line)
        if verb == "start":
            return self._start(words)
        if verb == "push":
            return self._push(words)
        if verb in inspect_verbs.VERBS:
            inspect_verbs.run(verb, words)
            return None
        if verb == "restart":
            return self._restart(words)
        if verb == "debug":
            debug_verbs.post_mortem(self.shell, words, self._execution_count())
            return None
        if verb in _TELLERS:
            print(_TELLERS[verb](self.shell, words))  # noqa: T201 - for the reader of the notebook
            return None
        if verb == "help":
            print(HELP)  # noqa: T201 - for the reader of the notebook
            return None
        command_line.expect_nothing(verb, words)
        if verb == "stop":
            self._stop()
        elif verb == "interrupt":
            print(interrupt_verbs.interrupt(session.pool()))  # noqa: T201 - for the reader of the notebook
        return None

    @cell_magic("ddp")  # type: ignore[arg-type]  # likewise
    def cell(self, line: str, cell: str, *, first_line: int = 2) -> Any:
        """Run the cell on the ranks of the pool; see ``%ddp help``."""
        command = command_line.parse_cell(line)
        if threading.current_thread() is not threading.main_thread():
            raise PoolBusyError(
                "%%ddp runs on the notebook's main thread only, one cell after another; "
                "for work in the background use %%ddp --async"
            )
        session.await_start()
        count = self._execution_count()
        source_check.check(self.shell, cell, first_line=first_line, execution_count=count)
        living = session.current_pool()
        expected = session.last_options() or PoolOptions()
        world_size = expected.world_size if living is None else living.world_size
        ranks = RankSet.parse("all" if command.ranks is None else command.ranks, world_size)
        pool = self._pool_or_default()
        options = CellOptions(
            ranks=ranks,
            timeout_s=command.timeout_s,
            execution_count=count,
            first_line=first_line,
            cell_name=cell_name(count),
            check=command.check,
            parent_id=session.parent_id(),
        )
        if command.is_async:
            run = pool.submit(cell, options)
            with pool.given_up_on_failure(run):
                view = session.make_view(pool, run, background=True, out=command.out)
                return CellHandle(pool, run, view, options.cell_name)
        try:
            pool.run_cell(cell, options, partial(session.make_view, out=command.out))
        finally:
            if command.trace:
                inspect_verbs.show_summary(pool, count)
        return None

    def _execution_count(self) -> int:
        """The number of the running cell; `InteractiveShell.execution_count` may be one ahead.

        0: it has none, since `nbddp console` has sent it; the next one of the notebook is not its.
        """
        if not session.is_in_history():
            return 0
        result = self.shell.displayhook.exec_result
        count = getattr(result, "execution_count", None)
        return self.shell.execution_count if count is None else int(count)

    def _pool_or_default(self) -> Pool:
        pool = session.current_pool()
        if pool is None:
            pool = session.start_like_last()
            print(f"no pool was running, so one was started: {status_table.headline(pool)}")  # noqa: T201
        return pool

    def _restart(self, words: list[str]) -> None:
        command = command_line.parse_restart(words)
        pool = session.pool()
        running = pool.running_cell
        if command.ranks is None:
            pool.restart()
            said = f"fresh ranks: {status_table.headline(pool)}"
        else:
            pool.expect_idle_beside(pool.rank_set(command.ranks))
            said = pool.restart(command.ranks)
        print(interrupt_verbs.note(pool, running) + said)  # noqa: T201 - for the reader of the notebook

    def _start(self, words: list[str]) -> None:
        arguments = command_line.parse_start(words)
        before = session.current_pool()
        pool = session.start(**arguments)
        there = "there already: " if pool is before else ""
        print(there + status_table.headline(pool))  # noqa: T201 - for the reader of the notebook

    def _stop(self) -> None:
        pool = session.current_pool()
        if pool is None:
            print("no pool is running")  # noqa: T201 - for the reader of the notebook
            return
        running = pool.running_cell
        try:
            session.stop(pool)
        except KeyboardInterrupt:  # raised when everything has ended
            raise PoolInterruptedError(
                "%ddp stop was interrupted, and has ended all processes all the same: no pool is "
                "running"
            ) from None
        print(f"{interrupt_verbs.note(pool, running)}stopped: {pool.world_size} ranks")  # noqa: T201 - likewise

    def _push(self, words: list[str]) -> None:
        names, ranks = command_line.parse_names("push", words)
        missing = [name for name in names if name not in self.shell.user_ns]
        if missing:
            raise TransferError(
                f"the notebook has no variable {', '.join(map(repr, missing))}; no variable was "
                "changed. Next: define it in a cell of the notebook itself; %ddp push takes names, "
                "no expressions"
            )
        session.pool().push({name: self.shell.user_ns[name] for name in names}, ranks=ranks)

    def _pull(self, line: str) -> Any:
        what, ranks = command_line.parse_pull(line)
        pool = session.pool()
        if ranks is None:
            return pool.pull(what)
        chosen = pool.rank_set(ranks)
        if len(chosen) == 0:
            raise BadOptionError("%ddp pull: no ranks")
        if len(chosen) == 1:
            return pool.pull(what, ranks=chosen.ranks[0])
        return pool.pull(what, ranks=chosen.ranks)
