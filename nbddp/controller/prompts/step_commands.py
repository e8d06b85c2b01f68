"""The lines that the user types while the ranks of a cell are stopped before operations.

Runs in: the thread that waits for the cell. Pure.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from nbddp.errors import BadOptionError
from nbddp.wire.mesh_ranks import MeshesByRank, read_ranks
from nbddp.wire.rank_set import RankSet
from nbddp.wire.step_replies import COUNTED, RUNS, StepReply, StepVerb

STEP_HELP: Final = """\
Each rank has stopped before its operation, which is not issued yet. [-r RANKS]: only these ranks
  step, s [N] [-r 0,2]  do the operation (N of them), and stop before the next one
  continue, c [-r 0,2]  do it, and go on to the next break point or the end of the cell
  until N [-r 0,2]      do it, and stop before collective number N of the same group
  skip [-r 0,2]         do not issue it: the tensors stay as they are; stop before the next one
  retry [CALL] [-r 2]   evaluate the arguments of its call again, or take this call; stay before it
  hold -r 2             keep rank 2 here while commands without -r let the others go
  release [-r 2]        end that
  print, p EXPR [-r 2]  the value of an expression in the user's frame, on all stopped ranks
  run CODE [-r 2]       run statements there
  show TENSOR [-r 2]    the tensor of each rank as a picture, see nbddp.show
                        before, after: names of the tensor of the operation stepped over last
  diff EXPR [-r 0,2]    whether a value is equal on the ranks, and where it first differs
  where, w [-r 2]       the lines of the user's code that have led there
  up, u [N], down, d    look from the line that has called this one, and back: print, run, diff
  waits                 which rank waits for which
  trace                 the last operations, the ranks side by side
  rank 2                open the debugger (pdb) of rank 2 there; q comes back
  ranks                 show this table again, and what the other ranks do
  quit, q               end the cell: every variable is kept, all ranks are freed
An empty line repeats step."""

#: ``-r`` in front of what a command is about.
_EARLY_RANKS = re.compile(r"(\w+)\s+-r\s*(\d[\d,-]*|\w+=\S+)\s+(\S.*)$")
_AGAIN = re.compile(r"-r\s*(?P<ranks>\d[\d,\s-]*)")
#: A list such as ``0,2-``, or dimensions of a mesh, which are no Python behind ``-r`` and a blank.
_RANKS = re.compile(
    r"\s+-r(?P<ranks>\s*(?:all|[\d,\s-]*\d|\d[\d,\s-]*)|\s+\w+(?:=[\w\s=:,-]*|\[[^\[\]]*\]))$"
)


@dataclass(frozen=True)
class Send:
    """A reply for stopped ranks; ``ranks`` None: for all of them."""

    reply: StepReply
    ranks: RankSet | None = None


@dataclass(frozen=True)
class Hold:
    """Keep ranks where they have stopped, or (``is_over``) let commands go to them again."""

    ranks: RankSet
    is_over: bool = False


class Sight(Enum):
    """Facts about all ranks that the notebook can show without asking them."""

    TABLE = "what each rank does"
    WAITS = "which rank waits for which"
    TRACE = "the last operations"


@dataclass(frozen=True)
class Look:
    """Show facts about all ranks."""

    sight: Sight


@dataclass(frozen=True)
class EndCell:
    """Interrupt the cell."""


@dataclass(frozen=True)
class Tell:
    """The line has no other effect than this text."""

    text: str


@dataclass(frozen=True)
class Free:
    """Free ranks that are held by a deadlock."""

    is_last: bool  #: later deadlocks of the cell open no prompt


@dataclass(frozen=True)
class Compare:
    """Compare a value between ranks; ``ranks`` None: all that stand at the prompt."""

    expression: str
    ranks: RankSet | None = None


StepCommand: TypeAlias = Send | Hold | Look | EndCell | Free | Compare | Tell

#: Commands that show facts about all ranks.
SIGHTS: Final[dict[str, StepCommand]] = {
    **dict.fromkeys(("ranks", "table"), Look(Sight.TABLE)),
    "waits": Look(Sight.WAITS),
    "trace": Look(Sight.TRACE),
}
#: Words that let a rank go.
GO_WORDS: Final = {
    **dict.fromkeys(("step", "s", "n", "next"), StepVerb.STEP),
    **dict.fromkeys(("continue", "c", "cont"), StepVerb.CONTINUE),
    "until": StepVerb.UNTIL,
    "skip": StepVerb.SKIP,
}
WHERE_WORDS: Final = ("where", "w", "bt")
QUIT_WORDS: Final = ("quit", "q", "exit")
HELP_WORDS: Final = ("help", "h", "?")
_VERBS: Final = {
    **GO_WORDS,
    **dict.fromkeys(("print", "p"), StepVerb.PRINT),
    **dict.fromkeys(("run", "!", "show"), StepVerb.RUN),
    **dict.fromkeys(WHERE_WORDS, StepVerb.WHERE),
    **dict.fromkeys(("up", "u"), StepVerb.UP),
    **dict.fromkeys(("down", "d"), StepVerb.DOWN),
    "retry": StepVerb.RETRY,
}
#: Commands without arguments that are not for ranks.
_OTHERS: Final[dict[str, StepCommand]] = {
    **SIGHTS,
    **dict.fromkeys(QUIT_WORDS, EndCell()),
    **dict.fromkeys(HELP_WORDS, Tell(STEP_HELP)),
}


def parse(line: str, world_size: int, meshes: MeshesByRank) -> StepCommand:
    """Return the meaning of a line.

    Args:
        line: as the user has typed it.
        world_size: number of ranks of the pool, of which ``-r`` chooses some.
        meshes: the meshes that each rank has reported.
    """
    try:
        text, ranks = split_ranks(line.strip() or "step", world_size, meshes)
    except BadOptionError as error:
        return Tell(str(error))
    word, _, rest = text.partition(" ")
    command = _command(word, rest.strip(), ranks, world_size)
    return command or Tell(_complaint(line.strip(), word, rest.strip()))


def _complaint(line: str, word: str, rest: str) -> str:
    """Say which part of a line is wrong, and what is legal."""
    verb = _VERBS.get(word)
    if rest.startswith("-r") and word in (*_VERBS, *_OTHERS, "hold", "release"):
        chosen = rest.removeprefix("-r").strip() or "nothing"
        return f"-r {chosen} chooses no ranks. Legal: -r 0,2, -r all, or a dimension as in -r tp=0"
    if verb is StepVerb.UNTIL:
        after = "" if not rest or rest[0].isdigit() else ". %ddp break stops later cells elsewhere"
        return f"`{word}` needs the number of a collective: `{word} 20`{after}"
    if verb in COUNTED:
        return f"`{word}` takes a whole number above 0, not {rest!r}: `{word} 2`"
    if verb in RUNS or word == "diff":
        return f"`{word}` needs {'code' if word in ('run', '!') else 'an expression'}: `{word} x`"
    if verb is not None or word in (*_OTHERS, "hold", "release"):
        ranks = "" if word in _OTHERS else "; for some ranks: -r 0,2"
        return f"`{word}` takes nothing behind it, not {rest!r}{ranks}"
    return (
        f"{line!r} is no command here. Legal: step [N], continue, until N, skip, "
        "retry [CALL], print EXPR, run CODE, show TENSOR, diff EXPR, "
        "where, up, down, hold, release, each with -r RANKS; rank N, "
        "ranks, waits, trace, quit, help"
    )


def split_ranks(text: str, world_size: int, meshes: MeshesByRank) -> tuple[str, RankSet | None]:
    """Return a line without the ranks at its end, and these ranks; None: it names none.

    Raises:
        BadOptionError: they are no ranks of the pool, or do not stand at its end.
    """
    if early := _EARLY_RANKS.match(text):
        word, ranks, rest = early.groups()
        if again := _AGAIN.fullmatch(rest):
            raise BadOptionError(
                f"-r is there twice. Next: {word} -r {ranks},{again['ranks'].strip()}"
            )
        raise BadOptionError(f"-r stands at the end of a command. Next: {word} {rest} -r {ranks}")
    match = _RANKS.search(text)
    if match is None:
        return text, None
    return (
        text[: match.start()].rstrip(),
        read_ranks(match["ranks"].strip(), world_size, meshes),
    )


def _command(word: str, rest: str, ranks: RankSet | None, world_size: int) -> StepCommand | None:
    if word in _OTHERS and not rest:
        return _OTHERS[word]
    if word == "rank":
        return _debug(rest, world_size)
    if word == "diff" and rest:
        return Compare(rest, ranks)
    if word in ("hold", "release") and not rest:
        if ranks is None and word == "hold":
            return Tell(f"`hold` needs ranks: `hold -r {world_size - 1}`")
        chosen = RankSet.all(world_size) if ranks is None else ranks
        return Hold(chosen, is_over=word == "release")
    reply = _reply(word, rest)
    return None if reply is None else Send(reply, ranks)


def _reply(word: str, rest: str) -> StepReply | None:
    verb = _VERBS.get(word)
    if verb in COUNTED:
        is_legal = _is_count(rest) or (not rest and verb is not StepVerb.UNTIL)
        return StepReply(verb, count=int(rest or 1)) if is_legal else None
    takes = {StepVerb.RUN: bool(rest), StepVerb.PRINT: bool(rest), StepVerb.RETRY: True}
    if verb is None or not takes.get(verb, not rest):
        return None
    return StepReply(verb, code=show_code(rest) if word == "show" else rest)


def show_code(expression: str) -> str:
    """Return code that draws a tensor."""
    return f"nbddp.show({expression}, title={expression!r}) and None"


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0


def _debug(text: str, world_size: int) -> StepCommand:
    if text.isascii() and text.isdigit() and int(text) < world_size:
        return Send(StepReply(StepVerb.DEBUG), RankSet.of([int(text)]))
    return Tell(f"`rank` needs one of the ranks 0 to {world_size - 1}: `rank {world_size - 1}`")
