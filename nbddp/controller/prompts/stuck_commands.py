"""The lines that the user types before a deadlock is ended: ``on_deadlock=debug``.

Runs in: the thread that waits for the cell. Pure.
"""

import ast
from typing import Final

from nbddp.controller.prompts.step_commands import (
    GO_WORDS,
    HELP_WORDS,
    QUIT_WORDS,
    SIGHTS,
    WHERE_WORDS,
    Compare,
    Free,
    Send,
    StepCommand,
    Tell,
    show_code,
    split_ranks,
)
from nbddp.errors import BadOptionError
from nbddp.wire.mesh_ranks import MeshesByRank
from nbddp.wire.rank_set import RankSet
from nbddp.wire.step_replies import StepReply, StepVerb

STUCK_HELP: Final = """\
No rank is freed yet; each is where the table says. [-r RANKS]: only these ranks
  print, p EXPR [-r 2]  the value of an expression in the user's frame of each rank
  show TENSOR [-r 2]    the tensor of each rank as a picture, see nbddp.show
  diff EXPR [-r 0,2]    whether a value is equal on the ranks, and where it first differs
  where, w [-r 2]       the lines of the user's code that have led there
  ranks                 show the table again
  waits                 which rank waits for which, as a card
  trace                 the last operations, the ranks side by side
  free                  free all ranks: the cell ends with the error that the card explains
  quit, q               the same, and open no prompt again in this cell"""

_LEGAL: Final = (
    "print EXPR, show TENSOR, diff EXPR, where, each with -r RANKS; ranks, waits, trace, free, quit"
)
#: Commands that let a rank of `%%ddp --step` go, or keep it.
_STEPS: Final = frozenset((*GO_WORDS, "retry", "hold", "release"))
_CHANGES: Final = frozenset(("run", "!", "rank"))
_OTHERS: Final[dict[str, StepCommand]] = {
    **SIGHTS,
    "free": Free(is_last=False),
    **dict.fromkeys(QUIT_WORDS, Free(is_last=True)),
    **dict.fromkeys(HELP_WORDS, Tell(STUCK_HELP)),
    "": Tell(f"an empty line does nothing here. Legal: {_LEGAL}, help"),
}


def _fault(expression: str) -> str:
    """Return why this is no expression; empty: it is one."""
    try:
        ast.parse(expression, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return getattr(error, "msg", "") or str(error)
    return ""


def _about_value(word: str, expression: str, ranks: RankSet | None) -> StepCommand:
    if fault := _fault(expression):
        return Tell(f"`{word}` takes an expression: {fault}")
    if word == "diff":
        return Compare(expression, ranks)
    if word == "show":
        return Send(StepReply(StepVerb.RUN, code=show_code(expression)), ranks)
    return Send(StepReply(StepVerb.PRINT, code=expression), ranks)


def parse_stuck(line: str, world_size: int, meshes: MeshesByRank) -> StepCommand:
    """Return the meaning of a line, see `nbddp.controller.prompts.step_commands.parse`."""
    try:
        text, ranks = split_ranks(line.strip(), world_size, meshes)
    except BadOptionError as error:
        return Tell(str(error))
    word, _, rest = text.partition(" ")
    rest = rest.strip()
    if word in _OTHERS and not rest:
        return _OTHERS[word]
    if word in ("print", "p", "show", "diff") and rest:
        return _about_value(word, rest, ranks)
    if word in WHERE_WORDS and not rest:
        return Send(StepReply(StepVerb.WHERE), ranks)
    if word in _STEPS:
        reason = f"`{word}` cannot let a rank go: each is inside its operation, or waits elsewhere"
    elif word in _CHANGES:
        reason = f"`{word}` would change a rank that may go on meanwhile"
    else:
        reason = f"{line.strip()!r} is no command here"
    return Tell(f"{reason}. Legal: {_LEGAL}, help")
