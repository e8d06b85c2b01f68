"""The options of a cell: ``%%ddp [options]``, and ``%ddp auto on [options]`` for every cell.

Runs in: the notebook's process. Pure.
"""

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from nbddp.controller.options import seconds
from nbddp.errors import BadOptionError
from nbddp.notebook.magics.arg_parser import Parser
from nbddp.notebook.magics.verb import Line
from nbddp.notebook.output import Out

#: An option of ``%ddp start`` in the line of a cell.
_NUMBER_OF_RANKS = re.compile(r"(?:^|\s)(?:-n(?=\s|=|\d|$)|--nproc[\w-]*)[\s=]*(\d*)")


@dataclass(frozen=True)
class CellCommand:
    """The options of one ``%%ddp`` line."""

    ranks: str | None
    timeout_s: float | None
    is_async: bool
    trace: bool = False
    check: bool = False
    step: bool = False
    panel: bool = False
    sanitize: str = ""  #: ``on``, ``data`` or ``all``; empty: not sanitized
    out: Out = "folded"
    fault: Sequence[str] | None = None  #: see `nbddp.wire.fault_grammar`


def _cell_parser() -> Parser:
    parser = Parser("%%ddp", bare="-r")
    parser.add_ranks()
    parser.add_argument(
        "--timeout",
        dest="timeout_s",
        type=seconds,
        metavar="SECONDS",
        help="interrupt the cell after this time",
    )
    parser.add_argument(
        "--async",
        action="store_true",
        dest="is_async",
        help="return a handle: await it, or handle.wait()",
    )
    parser.add_argument(
        "--trace", action="store_true", help="print a line about its collectives when it ends"
    )
    parser.add_argument(
        "--out",
        choices=get_args(Out),
        default="folded",
        help="folded: as it comes, equal lines together, and of more than 8 ranks also lines that "
        "differ in numbers only (default); merged: equal lines together; ranks: a block for each "
        "rank, at the end; quiet: last expressions and errors only",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="compare operations between machines before each (slower)",
    )
    parser.add_argument(
        "--step",
        action="store_true",
        help="stop all ranks before each collective or message, and ask what they do",
    )
    parser.add_argument(
        "--panel",
        action="store_true",
        help="with buttons in the place of the prompt, where ranks stop before operations",
    )
    parser.add_argument(
        "--fault",
        nargs="+",
        action="extend",
        metavar="'FAULT'",
        help="let a fault strike on purpose, for example 'rank 1: skip the next barrier'",
    )
    parser.add_argument(
        "--sanitize",
        nargs="?",
        const="on",
        default="",
        choices=("on", "data", "all"),
        help="find errors that do not hang but make numbers wrong (slower); data: samples that "
        "ranks read twice or never; all: both",
    )
    return parser


CELL = Line(_cell_parser(), "run the cell on all ranks, or on some")


def parse_cell(text: str, world_size: int | None = None) -> CellCommand:
    """Read the options of ``%%ddp``.

    Args:
        text: the options.
        world_size: the number of ranks of the pool; None: there is no pool.

    Raises:
        BadOptionError: an option is not legal; the message says what is.
    """
    asked = _NUMBER_OF_RANKS.search(text)
    if asked is not None:
        raise BadOptionError(_number_of_ranks(asked[1], world_size))
    command = CellCommand(**vars(CELL.parser.read(text)))
    if (command.step or command.panel) and command.is_async:
        option = "--step" if command.step else "--panel"
        raise BadOptionError(
            f"%%ddp: {option} asks you what the ranks do, and a cell with --async asks nothing. "
            "Next: leave out one of the two"
        )
    return command


def _number_of_ranks(asked: str, world_size: int | None) -> str:
    """The next step in place of an option about the number of ranks."""
    start = f"%ddp start -n {asked or 4}"
    if world_size is None:
        return (
            f"%%ddp: the number of ranks is set when the pool starts, and no pool is running. "
            f"Next: {start}, then %%ddp without -n"
        )
    has = f"the pool has {world_size} rank{'' if world_size == 1 else 's'}"
    if not asked or int(asked) == world_size:
        return (
            f"%%ddp: {has} already, and the cell runs on all of them. Next: leave out -n; "
            f"%%ddp -r 0 runs it on some"
        )
    return (
        f"%%ddp: {has}, and their number is set when the pool starts. Next: leave out -n; for "
        f"{asked} ranks, without the variables of these: %ddp stop, then {start}"
    )


class AutoParser(Parser):
    """A parser of ``on [options of %%ddp]`` and ``off``.

    Its namespace has ``mode`` and ``options``.
    """

    def parse(self, words: list[str]) -> argparse.Namespace:
        """Read the words.

        Raises:
            BadOptionError: the mode is unknown, or an option is not legal.
        """
        mode, *more = words or [""]
        if mode not in ("", "on", "off"):
            raise BadOptionError(
                f"{self.prog}: {mode!r} is unknown; legal: on, off. Next: %ddp help"
            )
        if more and mode == "off":
            raise BadOptionError(f"{self.prog} off takes no options, and got {' '.join(more)!r}")
        options = shlex.join(more)
        parse_cell(options)
        return argparse.Namespace(mode=mode, options=options)

    def completions(self, before: Sequence[str]) -> list[str]:
        """The words that may follow the words ``before``."""
        if not before:
            return ["on", "off"]
        return CELL.parser.completions(before[1:]) if before[0] == "on" else []
