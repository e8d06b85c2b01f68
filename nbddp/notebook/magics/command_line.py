"""The command lines of ``%ddp`` and ``%%ddp``: words in, checked options out.

Runs in: the notebook's process. Pure.
"""

import argparse
import ast
import re
import shlex
from dataclasses import dataclass
from typing import Any, Literal, get_args

from nbddp.controller.state.config import OnDeadlock, OnDeath
from nbddp.errors import BadOptionError
from nbddp.notebook.magics.arg_parser import Parser, nearest
from nbddp.notebook.output import Out
from nbddp.notebook.render.trace_table import DEFAULT_LAST
from nbddp.wire.messages import OnMismatch

_RANKS = r"(?:-r|--ranks)(?:\s+|=)"
_PULL = re.compile(
    rf"\s*pull\s+(?:{_RANKS}(?P<first>\S+)\s+)?(?P<what>(?!-r\b|--ranks\b)\S.*?)"
    rf"(?:\s+{_RANKS}(?P<last>\S+))?\s*"
)

#: A comment behind the words, as people write it to explain a line.
_COMMENT = re.compile(r"(?:^|\s)#\s")
VERBS = (
    "start",
    "status",
    "stop",
    "restart",
    "interrupt",
    "push",
    "pull",
    "vars",
    "diff",
    "diagnose",
    "stacks",
    "trace",
    "timeline",
    "config",
    "debug",
    "debugger",
    "auto",
    "help",
)
#: What may be configured, the default first.
LEGAL_CONFIG: dict[str, tuple[str, ...]] = {
    "on_deadlock": get_args(OnDeadlock),
    "on_mismatch": get_args(OnMismatch),
    "on_death": get_args(OnDeath),
}


@dataclass(frozen=True)
class CellCommand:
    """Options of ``%%ddp``."""

    ranks: str | None
    timeout_s: float | None
    is_async: bool
    trace: bool = False
    check: bool = False
    out: Out = "merged"


@dataclass(frozen=True)
class StatusCommand:
    """Options of ``%ddp status``."""

    live: Literal["", "on", "off"] = ""  #: empty: a table of this moment


@dataclass(frozen=True)
class StacksCommand:
    """Options of ``%ddp stacks``."""

    ranks: str | None = None


@dataclass(frozen=True)
class RestartCommand:
    """Options of ``%ddp restart``."""

    ranks: str | None = None  #: None: the whole pool


@dataclass(frozen=True)
class TraceCommand:
    """Options of ``%ddp trace``."""

    cell: int | None = None
    ranks: str | None = None
    last: int = DEFAULT_LAST
    save: str | None = None


@dataclass(frozen=True)
class AutoCommand:
    """What ``%ddp auto`` changes."""

    options: str | None  #: of ``%%ddp``, for every cell; None: off


@dataclass(frozen=True)
class TimelineCommand:
    """Options of ``%ddp timeline``."""

    cell: int | None = None  #: None: the last one that issued operations
    ranks: str | None = None


@dataclass(frozen=True)
class ConfigCommand:
    """What ``%ddp config`` changes; None: stays."""

    on_deadlock: str | None = None
    on_mismatch: str | None = None
    on_death: str | None = None

    @property
    def changes(self) -> dict[str, str]:
        """New values by name; empty: only show them."""
        return {name: value for name, value in vars(self).items() if value is not None}


def parse_cell(line: str) -> CellCommand:
    """Read the line of a ``%%ddp``. Raises `BadOptionError`."""
    parser = Parser("%%ddp", bare="-r")
    parser.add_argument("-r", "--ranks")
    parser.add_argument("--timeout", type=_seconds, metavar="SECONDS")
    parser.add_argument("--async", action="store_true", dest="is_async")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", choices=get_args(Out), default="merged")
    found = parser.parse(_split(line, "%%ddp"))
    return CellCommand(
        found.ranks, found.timeout, found.is_async, found.trace, found.check, found.out
    )


def parse_start(words: list[str]) -> dict[str, Any]:
    """Read the words after ``%ddp start``, as arguments of `nbddp.start`."""
    parser = Parser("%ddp start", bare="-n")
    parser.add_argument("-n", "--nproc-per-node", type=_whole, metavar="N", default=2)
    parser.add_argument("--nnodes", type=_whole, metavar="N", default=1)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--devices", type=_devices, default=())
    parser.add_argument("--init", default="env")
    parser.add_argument("--threads", type=_whole, metavar="N")
    parser.add_argument(
        "--env", metavar="NAME=VALUE", type=_variable, nargs="+", action="extend", default=[]
    )
    parser.add_argument("--cwd", metavar="FOLDER", default="")
    parser.add_argument("--timeout", type=_seconds, metavar="SECONDS")
    parser.add_argument("--plain", action="store_true")
    found = vars(parser.parse(words))
    found["env"] = dict(found["env"])
    return found


def parse_names(verb: str, words: list[str]) -> tuple[list[str], str | None]:
    """Read the words after ``push`` or ``pull``: what, and which ranks."""
    parser = Parser(f"%ddp {verb}")
    parser.add_argument("what", nargs="*", metavar="NAME ...")
    parser.add_argument("-r", "--ranks")
    found = parser.parse(words)
    if not found.what:
        raise BadOptionError(f"%ddp {verb}: what? Next: %ddp {verb} NAME ... [-r RANKS]")
    return found.what, found.ranks


def parse_pull(line: str) -> tuple[str, str | None]:
    """Read a whole ``pull EXPRESSION [-r RANKS]``; the quotes in the expression are Python's."""
    found = _PULL.fullmatch(line)
    if found is None or (found["first"] and found["last"]):
        raise BadOptionError("%ddp pull: what? Next: %ddp pull EXPRESSION [-r RANKS]")
    if found["what"].split()[-1] in ("-r", "--ranks"):
        raise BadOptionError("%ddp pull: -r without ranks; legal: %ddp pull EXPRESSION [-r RANKS]")
    return found["what"], found["first"] or found["last"]


def parse_status(words: list[str]) -> StatusCommand:
    """Read the words after ``%ddp status``."""
    parser = Parser("%ddp status")
    parser.add_argument("--live", nargs="?", const="on", default="", choices=("on", "off"))
    return StatusCommand(parser.parse(words).live)


def parse_stacks(words: list[str]) -> StacksCommand:
    """Read the words after ``%ddp stacks``."""
    return StacksCommand(_parse_ranks("stacks", words))


def parse_debug(verb: str, words: list[str]) -> str | None:
    """Read the words after ``debug`` or ``debugger``: the rank, if one is named."""
    return _parse_ranks(verb, words)


def parse_restart(words: list[str]) -> RestartCommand:
    """Read the words after ``%ddp restart``."""
    return RestartCommand(_parse_ranks("restart", words))


def parse_trace(words: list[str]) -> TraceCommand:
    """Read the words after ``%ddp trace``."""
    parser = Parser("%ddp trace", bare="--cell")
    parser.add_argument("--cell", type=_positive, metavar="N")
    parser.add_argument("-r", "--ranks")
    parser.add_argument("--last", type=_positive, metavar="N", default=DEFAULT_LAST)
    parser.add_argument("--save", metavar="FILE")
    found = parser.parse(words)
    if found.save == "":
        parser.error("argument --save: a file needs a name")
    return TraceCommand(found.cell, found.ranks, found.last, found.save)


def parse_auto(words: list[str]) -> AutoCommand | None:
    """Read the words after ``%ddp auto``; None: only show the mode."""
    if not words:
        return None
    if words[0] == "on":
        options = shlex.join(words[1:])
        parse_cell(options)
        return AutoCommand(options)
    if words[0] != "off":
        raise BadOptionError(f"%ddp auto {words[0]}: unknown; legal: on, off")
    expect_nothing("auto off", words[1:])
    return AutoCommand(None)


def parse_timeline(words: list[str]) -> TimelineCommand:
    """Read the words after ``%ddp timeline``."""
    parser = Parser("%ddp timeline", bare="--cell")
    parser.add_argument("--cell", type=_positive, metavar="N")
    parser.add_argument("-r", "--ranks")
    found = parser.parse(words)
    return TimelineCommand(found.cell, found.ranks)


def parse_config(words: list[str]) -> ConfigCommand:
    """Read the words after ``%ddp config``, such as ``on_deadlock=report``."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in LEGAL_CONFIG:
            legal = ", ".join(f"{key}={'|'.join(values)}" for key, values in LEGAL_CONFIG.items())
            raise BadOptionError(f"%ddp config: {name!r} is unknown; legal: {legal}")
        legal = " or ".join(f"{name}={value}" for value in LEGAL_CONFIG[name])
        if not equals:
            raise BadOptionError(f"%ddp config: {name} has no value; legal: {legal}")
        if value not in LEGAL_CONFIG[name]:
            raise BadOptionError(f"%ddp config: {name}={value} is unknown; legal: {legal}")
        if found.get(name, value) != value:
            raise BadOptionError(f"%ddp config: {name} has two values; legal: one of {legal}")
        found[name] = value
    return ConfigCommand(**found)


def split_verb(line: str) -> tuple[str, list[str]]:
    """``("start", ["-n", "4"])``. Raises `BadOptionError` for an unknown verb."""
    words = _split(line, "%ddp")
    verb = words[0] if words else "help"
    if verb not in VERBS:
        meant = nearest(verb, VERBS)
        guess = f"did you mean %ddp {meant}? Legal" if meant else "legal"
        raise BadOptionError(f"%ddp {verb}: unknown; {guess}: {', '.join(VERBS)}")
    return verb, words[1:]


def expect_nothing(verb: str, words: list[str]) -> None:
    """Raises `BadOptionError` if a verb that takes no options got some."""
    if words:
        raise BadOptionError(f"%ddp {verb} takes no options, and got {' '.join(words)!r}")


def _split(line: str, name: str) -> list[str]:
    line = _COMMENT.split(line, maxsplit=1)[0]
    try:
        return shlex.split(line)
    except ValueError as error:
        raise BadOptionError(f"{name}: {error}") from None


def _parse_ranks(verb: str, words: list[str]) -> str | None:
    parser = Parser(f"%ddp {verb}", bare="-r")
    parser.add_argument("-r", "--ranks")
    ranks: str | None = parser.parse(words).ranks
    return ranks


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return seconds


def _devices(text: str) -> tuple[int, ...]:
    numbers = text.split(",")
    if not all(number.isdigit() for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of devices such as 0,1")
    return tuple(int(number) for number in numbers)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


# --- expressions ---------------------------------------------------------------------------------


#: Ranks in front of the rest, or behind it.
_LINE = re.compile(
    rf"(?:{_RANKS}(?P<first>\S+)(?:\s+|$))?(?P<what>.*?)(?:(?:\s+|^){_RANKS}(?P<last>\S+))?"
)


def parse_vars(line: str) -> tuple[list[str], str | None]:
    """Read what is behind ``vars``: names, and which ranks. Raises `BadOptionError`."""
    text, ranks = _split_expressions("vars", line)
    return text.split(), ranks


def parse_diff(line: str) -> tuple[list[str], str | None]:
    """Read what is behind ``diff``: expressions, whose quotes are Python's, and which ranks.

    The line is one expression if it can be, else each word is one.

    Raises:
        BadOptionError: it is neither.
    """
    text, ranks = _split_expressions("diff", line)
    if not text:
        raise BadOptionError("%ddp diff: what? Next: %ddp diff EXPRESSION [-r RANKS]")
    pieces = [text] if _parsed(text) is not None else text.split()
    for piece in pieces:
        if (quoted := _quoted(piece)) is not None:
            raise BadOptionError(
                f"%ddp diff: {piece} is a text, which is the same everywhere. "
                f"Next: %ddp diff {quoted or 'model'}, without the quotes"
            )
        if _parsed(piece) is None:
            raise BadOptionError(
                f"%ddp diff: {piece!r} is not an expression. "
                "Next: %ddp diff model, or %ddp diff model.state_dict() [-r RANKS]"
            )
    return pieces, ranks


def _split_expressions(verb: str, line: str) -> tuple[str, str | None]:
    found = _LINE.fullmatch(_COMMENT.split(line, maxsplit=1)[0].strip())
    lacks = found is not None and found["what"].split()[-1:] in (["-r"], ["--ranks"])
    if found is None or (found["first"] and found["last"]) or lacks:
        what = "[NAME ...]" if verb == "vars" else "EXPRESSION"
        raise BadOptionError(
            f"%ddp {verb}: -r stands there twice, or without ranks. "
            f"Next: %ddp {verb} {what} [-r RANKS]"
        )
    return found["what"], found["first"] or found["last"]


def _quoted(text: str) -> str | None:
    """What is inside of the quotes; None: it is not in quotes."""
    found = _parsed(text)
    if isinstance(found, ast.Constant) and isinstance(found.value, str):
        return found.value.strip()
    return None


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, "<diff>", "eval").body
    except (SyntaxError, ValueError):
        return None
