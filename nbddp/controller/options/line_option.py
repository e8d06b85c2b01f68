"""An option as a command line has it: ``%ddp start``, ``nbddp kernel install``, or a kernel spec.

Runs in: the notebook's process, or that of the command ``nbddp``. Pure.
"""

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nbddp.durations import UNITS_S, parse_duration, write_duration


class TakesArguments(Protocol):
    """A parser, or a group of one."""

    def add_argument(self, *names: str, **options: Any) -> object:
        """Add an option, as `argparse.ArgumentParser.add_argument` does."""


@dataclass(frozen=True)
class LineOption:
    """The way in which a command line names, explains, reads and writes an option."""

    flags: tuple[str, ...]  #: the first one is written, the last one has the name of the field
    help: str
    metavar: str = ""  #: stands for the value; empty: the option is a switch
    read: Callable[[str], Any] = str  #: a word as a value; raises `argparse.ArgumentTypeError`
    write: Callable[[Any], Sequence[str]] = lambda value: [str(value)]
    #: The values that Tab offers; others may be legal, too.
    legal: Callable[[], Sequence[str]] = tuple
    is_repeated: bool = False  #: takes several pairs, and may be given several times
    has_options: bool = False  #: its value is options of another program, which begin with a dash

    def add_to(self, parser: TakesArguments, dest: str = "") -> None:
        """Add the option to a parser, whose result has it only if the user gave it.

        Args:
            parser: of a line.
            dest: the name in the result; empty: that of the last flag.
        """
        how: dict[str, Any] = {"action": "store_true"}
        if self.metavar:
            how = {"type": self.read, "metavar": self.metavar}
        if dest:
            how["dest"] = dest
        if self.is_repeated:
            how |= {"nargs": "+", "action": _Collect}
        parser.add_argument(*self.flags, **how, default=argparse.SUPPRESS, help=self.help)

    def words(self, value: Any) -> list[str]:
        """Write the option with this value as the words of a command line."""
        if not self.metavar:
            return [self.flags[0]] if value else []
        return [self.flags[0], *self.write(value)]


def with_joined_values(
    words: Sequence[str], flags: Collection[str], known: Collection[str]
) -> list[str]:
    """Join ``--slurm --time=10``, which `argparse` refuses, to ``--slurm=--time=10``.

    >>> with_joined_values(["--slurm", "--time=10", "-n", "2"], ["--slurm"], ["-n"])
    ['--slurm=--time=10', '-n', '2']

    Args:
        words: of a command line.
        flags: of options whose values are options of another program.
        known: all flags of this command line.
    """
    joined: list[str] = []
    for word in words:
        is_value = word.startswith("-") and word.partition("=")[0] not in known
        if joined and joined[-1] in flags and is_value:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


class _Collect(argparse.Action):
    """Collects pairs in a dictionary."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, getattr(namespace, self.dest, {}) | dict(values))


def whole_number(text: str) -> int:
    """Read ``4``."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def seconds(text: str) -> float:
    """Read ``1.5``."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def duration(text: str) -> float:
    """Read ``4h``."""
    value = parse_duration(text)
    if not value:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a duration such as 4h; units: {', '.join(UNITS_S)}"
        )
    return value


def write_duration_word(value: float) -> list[str]:
    """Write ``4h``."""
    return [write_duration(value)]


def devices(text: str) -> tuple[int, ...]:
    """Read ``0,1``."""
    numbers = text.split(",")
    if not all(number.isdigit() for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of devices such as 0,1")
    return tuple(int(number) for number in numbers)


def names(text: str) -> tuple[str, ...]:
    """Read ``a,b``."""
    words = tuple(word.strip() for word in text.split(","))
    if not all(words):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of names such as a,b, without blanks"
        )
    return words


def write_names(words: Sequence[str]) -> list[str]:
    """Write ``a,b``."""
    return [",".join(words)]


def write_devices(numbers: Sequence[int]) -> list[str]:
    """Write ``0,1``."""
    return [",".join(map(str, numbers))]


def variable(text: str) -> tuple[str, str]:
    """Read ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def job_option(text: str) -> tuple[str, str]:
    """Read ``NAME=VALUE`` with the name that a scheduler has for an option, such as ``l``."""
    name, equals, value = text.partition("=")
    if not (name and equals) or name.startswith("-"):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def write_variables(variables: Mapping[str, str]) -> list[str]:
    """Write ``NAME=VALUE ...``."""
    return [f"{name}={value}" for name, value in variables.items()]
