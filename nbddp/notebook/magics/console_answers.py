"""Answers to ``nbddp console`` while a cell occupies the notebook and a rank.

Runs in: the notebook's process, the thread of the kernel's control channel, which also gets
interrupts: so every wait here has a limit.

A Jupyter client can send any message on this channel; the names are in `nbddp.settings`.
"""

from functools import partial
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from nbddp.controller.pool import Pool
from nbddp.controller.state import RankState
from nbddp.errors import NbddpError
from nbddp.notebook import session
from nbddp.notebook.magics import inspect_verbs
from nbddp.notebook.magics.chosen_ranks import chosen_ranks
from nbddp.notebook.render import stacks, status_table
from nbddp.settings import CONSOLE_REPLY, CONSOLE_REQUEST
from nbddp.wire.rank_set import RankSet

#: A rank that holds the GIL in C answers later.
_LIMIT_S = 1.0
_HELP = (
    "Nothing was run. You can look at its names meanwhile: a name with attributes and items, such "
    "as model.fc.weight or losses[-1]; %ddp vars, %ddp status, %ddp stacks, %ddp diagnose."
)


def answer(rank: int, code: str) -> str:
    """The answer of a busy rank to what was typed in the console.

    Args:
        rank: the rank of the console.
        code: what was typed.

    Returns:
        Text; empty: no cell runs on the rank, so that the code can run.
    """
    pool = session.current_pool()
    if pool is None or rank not in pool.snapshot.in_state(RankState.BUSY):
        return ""
    try:
        return _view(pool, code) or _glance(pool, rank, code)
    except NbddpError as error:  # the pool ends at this moment
        return str(error)


def choose(text: str) -> dict[str, Any]:
    """The ranks that a console chooses by dimensions of a mesh, or the text of the error."""
    try:
        return {"ranks": list(chosen_ranks(text))}
    except NbddpError as error:
        return {"text": str(error)}


def _view(pool: Pool, code: str) -> str:
    """The text form of a view of all ranks; empty: ``code`` asks for none."""
    match code.split():
        case ["%ddp", "status"]:
            bundle = status_table.survey(pool).bundle()
        case ["%ddp", "stacks"]:
            bundle = stacks.stacks(pool.stacks(None).views)
        case ["%ddp", "diagnose"] if not pool.options.plain:
            bundle = inspect_verbs.diagnosis(pool, "The notebook's stop button")
        case _:
            return ""
    return bundle["text/plain"]


def _glance(pool: Pool, rank: int, code: str) -> str:
    glance = pool.talk.glance(rank, "" if code.split() == ["%ddp", "vars"] else code, _LIMIT_S)
    if glance is not None and glance.found:
        return str(glance.data["text/plain"])
    silent = "\nIt does not answer: it computes outside of Python." if glance is None else ""
    return _activity(pool, rank) + silent


def _activity(pool: Pool, rank: int) -> str:
    """Where the rank is, whom it waits for, and what can be looked at."""
    diagnosed = pool.stacks(None) if pool.options.plain else pool.observe()
    bundle = stacks.stacks(diagnosed.views, RankSet.of([rank]), state=" is busy")
    lines = [bundle["text/plain"]]
    lines += [
        finding.headline
        for finding in diagnosed.report.findings
        if rank in (*finding.waiting, *finding.culprits)
    ][:1]
    return "\n".join([*lines, _HELP])


def _handle(kernel: Any, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
    """Serve a request, as the handlers of `ipykernel` do."""
    content = parent["content"]
    if "ranks" in content:
        reply = choose(str(content["ranks"]))
    else:
        reply = {"text": answer(int(content["rank"]), str(content["code"]))}
    kernel.session.send(stream, CONSOLE_REPLY, reply, parent=parent, ident=ident)


def install(shell: InteractiveShell) -> None:
    """Let the kernel answer consoles; nothing in a terminal."""
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        kernel.control_handlers[CONSOLE_REQUEST] = partial(_handle, kernel)


def uninstall(shell: InteractiveShell) -> None:
    """Restore the state before `install`."""
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        kernel.control_handlers.pop(CONSOLE_REQUEST, None)
