"""A parser of command lines that raises, and guesses what was meant.

Runs in: the notebook's process. Pure.
"""

import argparse
import difflib
import re
import shlex
from collections.abc import Iterator
from typing import Any, NoReturn

from nbddp.errors import BadOptionError

#: A number, or a set of ranks such as ``0,2-3``.
_NUMBERS = re.compile(r"\d[\d,-]*|all")


class Parser(argparse.ArgumentParser):
    """Raises instead of ending the process.

    Args:
        name: what stands in front of the words, such as ``%ddp start``.
        bare: the option that is meant by a number without one, such as ``-n``.
    """

    def __init__(self, name: str, bare: str = "") -> None:
        self._bare = bare
        self._options: list[str] = []
        super().__init__(prog=name, add_help=False, allow_abbrev=False, exit_on_error=False)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """As `argparse.ArgumentParser.add_argument`."""
        self._options += [name for name in names if name.startswith("-")]
        return super().add_argument(*names, **options)

    def error(self, message: str) -> NoReturn:
        """Raises `BadOptionError`."""
        raise BadOptionError(f"{self.prog}: {message}; legal: {self._legal()}. Next: %ddp help")

    def _legal(self) -> str:
        """``-r RANKS, --out merged|ranks|quiet, --async``."""
        return ", ".join(filter(None, map(_in_words, self._actions)))

    def parse(self, words: list[str]) -> argparse.Namespace:
        """Read the words. Raises `BadOptionError`."""
        try:
            found, rest = self.parse_known_args(words)
        except argparse.ArgumentError as error:
            self.error(str(error))
        if rest:
            unknown = f"unknown: {' '.join(rest)}"
            meant = self._meant(words, rest)
            if meant:
                raise BadOptionError(f"{self.prog}: {unknown}. Did you mean {self.prog} {meant}?")
            self.error(unknown)
        return found

    def _meant(self, words: list[str], rest: list[str]) -> str:
        """The words as they are legal; empty: that cannot be guessed."""
        for guess in self._guesses(words, rest):
            try:
                is_legal = guess != words and not self.parse_known_args(guess)[1]
            except (argparse.ArgumentError, BadOptionError):
                continue
            if is_legal:
                return shlex.join(guess)
        return ""

    def _guesses(self, words: list[str], rest: list[str]) -> Iterator[list[str]]:
        unknown = set(rest)
        named = [
            part for word in words for part in (self._named(word) if word in unknown else [word])
        ]
        yield named
        if self._bare and self._bare not in named:
            at = next((n for n, word in enumerate(named) if _is_bare(word, unknown)), None)
            if at is not None:
                yield [*named[:at], self._bare, *named[at:]]

    def _named(self, word: str) -> list[str]:
        """``--nproc`` as the option that is nearest, ``n=4`` as ``-n 4``."""
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        known = [option for option in self._options if option.lstrip("-") == name.lstrip("-")]
        if not known and name.startswith("--"):
            known = [option for option in self._options if option.startswith(name)]
        if not known and name.startswith("-"):
            known = difflib.get_close_matches(name, self._options, n=1)
        if len(known) != 1:
            return [word]
        return [known[0], value] if equals else known


def _in_words(action: argparse.Action) -> str:
    name = action.option_strings[0] if action.option_strings else ""
    if action.nargs == 0:
        return name
    value = "|".join(action.choices or ()) or str(action.metavar or action.dest.upper())
    if action.nargs == "?":
        value = f"[{value}]"
    return f"{name} {value}".strip()


def _is_bare(word: str, unknown: set[str]) -> bool:
    return word in unknown and _NUMBERS.fullmatch(word) is not None


def nearest(word: str, legal: tuple[str, ...]) -> str:
    """What was meant by ``word``; empty: that cannot be guessed."""
    found = difflib.get_close_matches(word.lower(), legal, n=1, cutoff=0.7)
    return found[0] if found else ""
