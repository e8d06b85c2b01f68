"""A parser of the words of a magic: it raises errors, corrects typing errors, completes words.

Runs in: the notebook's process. Pure.
"""

import argparse
import difflib
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from nbddp.controller.options import with_joined_values
from nbddp.durations import parse_duration
from nbddp.errors import BadOptionError
from nbddp.legal_words import guess_and_legal

#: A number, or a set of ranks such as ``0,2-3`` or ``tp=0``.
_NUMBERS = re.compile(r"\d[\d,-]*|all|\w+=-?\d[\d:]*")
#: The beginning of an option; ``--`` alone and numbers are none.
_OPTION = re.compile(r"--?[a-zA-Z]")
#: A comment behind the words, or a text in quotes.
_COMMENT = re.compile(r"""('[^']*'|"(?:\\.|[^"\\])*")|(?:^|(?<=\s))#\s.*""", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `BadOptionError` instead of ending the process.

    Args:
        name: the text in front of the words, such as ``%ddp start``.
        bare: the option to which a number or a duration without an option belongs, such as ``-n``.
        meant: the option that users of other tools mean by a word which is no option here.
    """

    def __init__(self, name: str, bare: str = "", meant: Mapping[str, str] | None = None) -> None:
        self._bare = bare
        self._meant = dict(meant or {})
        self._options: list[str] = []
        self._needs: dict[str, str] = {}  # a word for each required argument, by its name
        self._with_options: list[str] = []
        self._offers: dict[str, Callable[[], Sequence[str]]] = {}
        super().__init__(prog=name, add_help=False, allow_abbrev=False, exit_on_error=False)

    def add_argument(self, *names: Any, needs: str = "", **options: Any) -> argparse.Action:
        """Add an option or a positional argument, as `argparse.ArgumentParser.add_argument` does.

        Args:
            names: the names of an option, or the name of a positional argument.
            needs: a word for a required argument, such as ``a name``; empty: it is optional.
            options: other arguments of `argparse.ArgumentParser.add_argument`.
        """
        self._options += [name for name in names if name.startswith("-")]
        action = super().add_argument(*names, **options)
        if needs:
            self._needs[action.dest] = needs
        return action

    def add_ranks(self, **options: Any) -> None:
        """Add ``-r`` and ``--mesh``, which arrive as one text: ``grid[tp=0]``."""
        self.add_argument("-r", "--ranks", **options)
        self.add_argument("--mesh", metavar="NAME", help=argparse.SUPPRESS)

    def offer(self, options: Iterable[str], values: Callable[[], Sequence[str]]) -> None:
        """Let Tab offer the values that this function returns behind an option."""
        self._offers.update(dict.fromkeys(options, values))

    def take_options(self, flags: Iterable[str]) -> None:
        """Note that the value of an option is options of another program, in quotes."""
        self._with_options += flags

    # --- reading -------------------------------------------------------------------------------

    def read(self, text: str) -> argparse.Namespace:
        """Read the text behind the name.

        Raises:
            BadOptionError: the text is not legal; the message says what is.
        """
        try:
            words = shlex.split(_COMMENT.sub(lambda match: match[1] or "", text))
        except ValueError as error:
            raise BadOptionError(f"{self.prog}: {error}") from None
        return self.parse(words)

    def parse(self, words: list[str]) -> argparse.Namespace:
        """Read the words.

        Raises:
            BadOptionError: the words are not legal; the message says what is.
        """
        words = with_joined_values(words, self._with_options, self._option_string_actions)
        self._refuse_repetition(words)
        try:
            namespace, rest = self.parse_known_args(words)
        except argparse.ArgumentError as error:
            near = self._meant_options(words)
            legal = self._actions if near else self._named_in(error)
            raise self._refused(str(error), legal, near) from None
        if rest and not self._actions:
            raise BadOptionError(f"{self.prog} takes no options, and got {' '.join(rest)!r}")
        if rest:
            unknown = f"unknown: {' '.join(rest)}"
            guess = self._guess(words, rest)
            if guess:
                raise BadOptionError(f"{self.prog}: {unknown}. Did you mean {self.prog} {guess}?")
            if given := self._given_already(words, rest):
                raise BadOptionError(
                    f"{self.prog}: {unknown}; perhaps {given} is meant, which is given already. "
                    f"Next: the line without {' '.join(rest)}"
                )
            raise self._refused(unknown, self._actions, self._meant_options(rest))
        for dest, description in self._needs.items():
            if not getattr(namespace, dest):
                raise BadOptionError(f"{self.prog} needs {description}. Next: {self.usage_line()}")
        mesh = vars(namespace).pop("mesh", None)
        if mesh is not None:
            namespace.ranks = f"{mesh}[{namespace.ranks or ''}]"
        return namespace

    def _refuse_repetition(self, words: list[str]) -> None:
        given_options: list[argparse.Action] = []
        for word in words:
            name = word.partition("=")[0]
            action = self._option_string_actions.get(name)
            if action is not None and action in given_options:
                raise self._refused(f"{name} is given twice", [action])
            for given in given_options:
                if action is not None and action.dest == given.dest and action.nargs != 0:
                    both = f"{given.option_strings[0]} and {name}"
                    raise BadOptionError(
                        f"{self.prog}: {both} set the same option. Next: leave out one"
                    )
            if action is not None and action.nargs != "+":
                given_options.append(action)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse an illegal choice; `_refused` says what is legal, and `argparse` need not."""
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}")

    def error(self, message: str) -> NoReturn:
        """Raise `BadOptionError`; `argparse` calls this."""
        raise self._refused(message, self._actions)

    def _refused(
        self, message: str, legal: Iterable[argparse.Action], near: Sequence[str] = ()
    ) -> BadOptionError:
        """``...; legal: -r RANKS, --out merged|ranks|quiet, --async. Next: %ddp help``."""
        listed = (action for action in legal if action.help != argparse.SUPPRESS)
        choices = guess_and_legal(near, map(option_text, listed))
        return BadOptionError(f"{self.prog}: {message}{choices}. Next: %ddp help")

    def _named_in(self, error: argparse.ArgumentError) -> list[argparse.Action]:
        names = [(action, "/".join(action.option_strings)) for action in self._actions]
        return [action for action, name in names if name == error.argument_name] or self._actions

    # --- what is legal -------------------------------------------------------------------------

    def arguments(self) -> list[argparse.Action]:
        """The options and positional arguments of the line."""
        return list(self._actions)

    def usage_line(self) -> str:
        """``%ddp push NAME ... [-r RANKS]``: positional arguments, and options without a help."""
        listed = [a for a in self._actions if not (a.option_strings and a.help)]
        words = [self._in_brackets(action) for action in listed]
        hidden = sum(action.help == argparse.SUPPRESS for action in self._actions)
        if len(self._actions) - len(listed) - hidden > 1:
            words.append("[options]")
        return " ".join([self.prog, *words])

    def awaits_value(self, before: Sequence[str]) -> bool:
        """Whether the last of these words is an option that takes a value."""
        last = self._option_string_actions.get(before[-1]) if before else None
        return last is not None and last.nargs != 0

    def completions(self, before: Sequence[str]) -> list[str]:
        """The words that may follow the words ``before``."""
        values: list[str] = []
        if self.awaits_value(before):
            action = self._option_string_actions[before[-1]]
            values = [*(action.choices or self._offers.get(before[-1], tuple)())]
            if action.nargs != "?":
                return values
        used = {self._option_string_actions.get(word) for word in before}
        unused = [action for action in self._actions if action not in used or action.nargs == "+"]
        return values + [option for action in unused for option in action.option_strings]

    def _in_brackets(self, action: argparse.Action) -> str:
        words = option_text(action)
        return words if action.dest in self._needs else f"[{words}]"

    # --- guesses -------------------------------------------------------------------------------

    def _guess(self, words: list[str], rest: list[str]) -> str:
        """The nearest legal words; empty if there is no guess."""
        for guess in self._guesses(words, rest):
            try:
                self._refuse_repetition(guess)
                is_legal = guess != words and not self.parse_known_args(guess)[1]
            except (argparse.ArgumentError, BadOptionError):
                continue
            if is_legal:
                return shlex.join(guess)
        return ""

    def _given_already(self, words: list[str], unknown: list[str]) -> str:
        """The option of the line that the first unknown word means as well; empty: none."""
        actions = self._option_string_actions
        for option in self._meant_options(unknown[:1]):
            for word in words:
                name = word.partition("=")[0]
                if actions.get(name) is actions[option] and actions[option].nargs != "+":
                    return name
        return ""

    def _guesses(self, words: list[str], rest: list[str]) -> Iterator[list[str]]:
        unknown = set(rest)
        yield self._quoted(words, unknown)
        corrected = [
            part for word in words for part in (self._correct(word) if word in unknown else [word])
        ]
        yield corrected
        if self._bare in words:
            yield self._joined(words)
        if self._bare and self._bare not in corrected:
            bare = (n for n, word in enumerate(corrected) if word in unknown and self._fits(word))
            at = next(bare, None)
            if at is not None:
                yield [*corrected[:at], self._bare, *corrected[at:]]

    def _fits(self, word: str) -> bool:
        """Whether a word is perhaps the value of the option to which one without option belongs."""
        has_type = self._option_string_actions[self._bare].type is not None  # which checks it
        is_duration = has_type and parse_duration(word) is not None
        return is_duration or _NUMBERS.fullmatch(word) is not None

    def _quoted(self, words: list[str], unknown: set[str]) -> list[str]:
        """The words with ``--slurm "--time=1 -p a"`` in the place of ``--slurm --time=1 -p a``."""
        quoted: list[str] = []
        is_open = False
        for word in words:
            flag, equals, value = word.partition("=")
            if is_open and word in unknown:
                quoted[-1] += f" {word}"
                continue
            is_open = flag in self._with_options and bool(equals)
            quoted += [flag, value] if is_open else [word]
        return quoted

    def _joined(self, words: list[str]) -> list[str]:
        """The words with ``-r 0,1`` in the place of ``-r 0 1``."""
        begin = words.index(self._bare) + 1
        end = begin
        while end < len(words) and _NUMBERS.fullmatch(words[end]):
            end += 1
        return [*words[:begin], ",".join(words[begin:end]), *words[end:]]

    def _correct(self, word: str) -> list[str]:
        """The nearest option: ``--nproc`` gives ``--nproc-per-node``, ``n=4`` gives ``-n 4``."""
        _, equals, value = word.partition("=")
        known = self._near_options(word)
        if len(known) != 1:
            return [word]
        return [known[0], value] if equals else known

    def _near_options(self, word: str) -> list[str]:
        """The options that a word may mean."""
        name = word.partition("=")[0].replace("_", "-")
        if name in self._meant:
            return [self._meant[name]]
        known = [option for option in self._options if option.lstrip("-") == name.lstrip("-")]
        if not known and name.startswith("--"):
            known = [option for option in self._options if option.startswith(name)]
        if not known and name.startswith("-"):
            bare = {option.lstrip("-"): option for option in self._options}
            near = difflib.get_close_matches(name.lstrip("-"), bare, n=1)
            known = [bare[option] for option in near]
        return known

    def _meant_options(self, words: Iterable[str]) -> list[str]:
        """The options that words with a dash may mean which are none, whatever follows them."""
        unknown = (
            word
            for word in words
            if _OPTION.match(word) and word.partition("=")[0] not in self._option_string_actions
        )
        near = (option for word in unknown for option in self._near_options(word))
        return list(dict.fromkeys(near))


def option_text(action: argparse.Action, *, is_long: bool = False) -> str:
    """``-r RANKS``; with ``is_long`` all names of the option: ``-r, --ranks RANKS``."""
    names = action.option_strings if is_long else action.option_strings[:1]
    if action.nargs == 0:
        return ", ".join(names)
    value = "|".join(action.choices or ()) or str(action.metavar or action.dest.upper())
    if action.nargs in ("+", "*"):
        value = f"{value} ..."
    elif action.nargs == "?" and names:
        value = f"[{value}]"
    return f"{', '.join(names)} {value}".strip()
