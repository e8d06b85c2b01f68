"""A parser of the words of a magic: it raises, guesses what was meant, knows what may come next.

Runs in: the notebook's process. Pure.
"""

import argparse
import difflib
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from nbddp.errors import BadOptionError

#: A number, or a set of ranks such as ``0,2-3``.
_NUMBERS = re.compile(r"\d[\d,-]*|all")
#: A comment behind the words, as people write it to explain a line; or a text in quotes.
_COMMENT = re.compile(r"""('[^']*'|"(?:\\.|[^"\\])*")|(?:^|(?<=\s))#\s.*""", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """Raises instead of ending the process.

    Args:
        name: what stands in front of the words, such as ``%ddp start``.
        bare: the option that is meant by a number without one, such as ``-n``.
    """

    def __init__(self, name: str, bare: str = "") -> None:
        self._bare = bare
        self._options: list[str] = []
        self._needs: dict[str, str] = {}  # of what is needed: a word for it, by name
        self._offers: dict[str, Sequence[str]] = {}
        super().__init__(prog=name, add_help=False, allow_abbrev=False, exit_on_error=False)

    def add_argument(self, *names: Any, needs: str = "", **options: Any) -> argparse.Action:
        """As `argparse.ArgumentParser.add_argument`.

        Args:
            names: of an option or of what stands on its own.
            needs: what it is, such as ``a name``, if the line is nothing without it.
            options: as there.
        """
        self._options += [name for name in names if name.startswith("-")]
        action = super().add_argument(*names, **options)
        if needs:
            self._needs[action.dest] = needs
        return action

    def offer(self, options: Iterable[str], values: Sequence[str]) -> None:
        """Offer these values behind an option to whoever presses Tab; others may be legal, too."""
        self._offers.update(dict.fromkeys(options, values))

    # --- reading -------------------------------------------------------------------------------

    def read(self, text: str) -> argparse.Namespace:
        """Read what stands behind the name. Raises `BadOptionError`."""
        try:
            words = shlex.split(_COMMENT.sub(lambda found: found[1] or "", text))
        except ValueError as error:
            raise BadOptionError(f"{self.prog}: {error}") from None
        return self.parse(words)

    def parse(self, words: list[str]) -> argparse.Namespace:
        """Read the words. Raises `BadOptionError`."""
        self._refuse_repetition(words)
        try:
            found, rest = self.parse_known_args(words)
        except argparse.ArgumentError as error:
            raise self._refused(str(error), self._named_in(error)) from None
        if rest and not self._actions:
            raise BadOptionError(f"{self.prog} takes no options, and got {' '.join(rest)!r}")
        if rest:
            unknown = f"unknown: {' '.join(rest)}"
            meant = self._meant(words, rest)
            if meant:
                raise BadOptionError(f"{self.prog}: {unknown}. Did you mean {self.prog} {meant}?")
            self.error(unknown)
        for dest, what in self._needs.items():
            if not getattr(found, dest):
                raise BadOptionError(f"{self.prog} needs {what}. Next: {self.usage_line()}")
        return found

    def _refuse_repetition(self, words: list[str]) -> None:
        given: list[argparse.Action] = []
        for word in words:
            name = word.partition("=")[0]
            action = self._option_string_actions.get(name)
            if action is not None and action in given:
                raise self._refused(f"{name} is given twice", [action])
            if action is not None and action.nargs != "+":
                given.append(action)

    def error(self, message: str) -> NoReturn:
        """Raises `BadOptionError`."""
        raise self._refused(message, self._actions)

    def _refused(self, message: str, legal: Iterable[argparse.Action]) -> BadOptionError:
        """``...; legal: -r RANKS, --out merged|ranks|quiet, --async. Next: %ddp help``."""
        words = ", ".join(map(in_words, legal))
        return BadOptionError(f"{self.prog}: {message}; legal: {words}. Next: %ddp help")

    def _named_in(self, error: argparse.ArgumentError) -> list[argparse.Action]:
        names = [(action, "/".join(action.option_strings)) for action in self._actions]
        return [action for action, name in names if name == error.argument_name] or self._actions

    # --- what is legal -------------------------------------------------------------------------

    def arguments(self) -> list[argparse.Action]:
        """What the line may have: options, and what stands on its own."""
        return list(self._actions)

    def usage_line(self) -> str:
        """``%ddp push NAME ... [-r RANKS]``: what stands on its own, and options without a help."""
        own = [action for action in self._actions if not (action.option_strings and action.help)]
        words = [self._in_brackets(action) for action in own]
        if len(self._actions) - len(own) > 1:
            words.append("[options]")
        return " ".join([self.prog, *words])

    def awaits_value(self, before: Sequence[str]) -> bool:
        """Whether the last of these words is an option that takes a value."""
        last = self._option_string_actions.get(before[-1]) if before else None
        return last is not None and last.nargs != 0

    def completions(self, before: Sequence[str]) -> list[str]:
        """What may come next behind the words ``before``."""
        if self.awaits_value(before):
            action = self._option_string_actions[before[-1]]
            return [*(action.choices or self._offers.get(before[-1], ()))]
        used = {self._option_string_actions.get(word) for word in before}
        left = [action for action in self._actions if action not in used or action.nargs == "+"]
        return [option for action in left for option in action.option_strings]

    def _in_brackets(self, action: argparse.Action) -> str:
        words = in_words(action)
        return words if action.dest in self._needs else f"[{words}]"

    # --- what was meant ------------------------------------------------------------------------

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


def in_words(action: argparse.Action, *, is_long: bool = False) -> str:
    """``-r RANKS``; with ``is_long`` all names of it: ``-r, --ranks RANKS``."""
    names = action.option_strings if is_long else action.option_strings[:1]
    if action.nargs == 0:
        return ", ".join(names)
    value = "|".join(action.choices or ()) or str(action.metavar or action.dest.upper())
    if action.nargs in ("+", "*"):
        value = f"{value} ..."
    elif action.nargs == "?" and names:
        value = f"[{value}]"
    return f"{', '.join(names)} {value}".strip()


def nearest(word: str, legal: Iterable[str]) -> str:
    """What was meant by ``word``; empty: that cannot be guessed."""
    found = difflib.get_close_matches(word.lower(), legal, n=1, cutoff=0.7)
    return found[0] if found else ""


def _is_bare(word: str, unknown: set[str]) -> bool:
    return word in unknown and _NUMBERS.fullmatch(word) is not None
