"""The lines that the user types at a debugger's prompt: for nbddp, for one rank, or for all ranks.

Runs in: the thread that waits for the cell. Pure. No name of a debugger's command is parsed, except
those after which the program goes on.
"""

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

HELP: Final = """\
nbddp has one prompt for the debuggers of all ranks:
  rank 2       go to the prompt of rank 2
  ranks        list which ranks are at a prompt, and what the others do; also: rank
  all COMMAND  send a command to every rank at a prompt: all p x, all n, all c
A variable with such a name: p rank"""
#: The same in the debugger that the user has opened from the prompt of all ranks.
HELP_ALONE: Final = """\
This debugger looks at rank {rank} alone:
  q            come back to the prompt of all ranks
  ranks        list which ranks are at a prompt, and what the others do; also: rank"""

_SWITCH = re.compile(r"rank\s+(\d+)")
_ALL = re.compile(r"all\s+(?![-+*/%=<>|&^.,:;()\[\]]|!=|(?:is|in|not|if|and|or)\b)(.+)")
_TOPICS = ("rank", "ranks", "all")
_HELP_WORDS = ("h", "help", "?")
#: Commands of pdb that end the debugger.
_END = ("q", "quit", "exit")
#: Commands of pdb after which a rank is at no prompt until it comes to another breakpoint.
_LEAVE = {
    **dict.fromkeys(("c", "cont", "continue"), "goes on"),
    **dict.fromkeys(_END, "left the debugger"),
}


@dataclass(frozen=True)
class Forward:
    """A line for debuggers of ranks."""

    text: str
    to_all: bool = False  #: for all ranks that are at a prompt; else for the one that was asked

    @property
    def leaves(self) -> str:
        """A predicate of ranks that are not expected back after it: ``goes on``; else empty."""
        return _LEAVE.get(self._word, "")

    @property
    def ends_debugger(self) -> bool:
        """Whether the user leaves the debugger with it."""
        return self._word in _END

    @property
    def _word(self) -> str:
        """The command of pdb, which reads ``exit()`` as ``exit``."""
        return next(iter(self.text.split()), "").removesuffix("()")

    @property
    def asks_for_help(self) -> bool:
        """Whether the debugger lists its commands."""
        return self.text.strip() in _HELP_WORDS


@dataclass(frozen=True)
class Switch:
    """Move the prompt to another rank."""

    rank: int


@dataclass(frozen=True)
class ListRanks:
    """Show what each rank does."""


@dataclass(frozen=True)
class ShowHelp:
    """Show `HELP`."""


Command: TypeAlias = Forward | Switch | ListRanks | ShowHelp


def parse(line: str) -> Command:
    """Return the meaning of a line.

    A line that could be Python stays Python: ``rank - 1``, ``all(x)``, ``ranks = 3``. Only ``rank``
    and ``ranks`` alone are not: ``p rank`` shows the variable.
    """
    text = line.strip()
    if text in ("rank", "ranks"):
        return ListRanks()
    if match := _SWITCH.fullmatch(text):
        return Switch(int(match[1]))
    if text == "all":
        return ShowHelp()
    if match := _ALL.fullmatch(text):
        return Forward(match[1], to_all=True)
    words = text.split()
    if len(words) == 2 and words[0] in _HELP_WORDS and words[1] in _TOPICS:
        return ShowHelp()
    return Forward(line)
