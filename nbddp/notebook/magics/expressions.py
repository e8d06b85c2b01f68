"""Lines with names or expressions of Python, whose quotes, brackets and operators are Python's.

    %ddp diff model.state_dict()["a b"] optimizer -r 0,2  # why
              '------- one word -------' '- word '  '-- option

Runs in: the notebook's process. Pure.
"""

import argparse
import ast
import re
import warnings
from collections.abc import Sequence
from typing import NoReturn

from nbddp.errors import BadOptionError
from nbddp.notebook.magics.arg_parser import Parser

_PIECE = re.compile(
    r"""(?P<text>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")"""
    r"|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<space>\s+)|(?P<comment>\#(?=\s|$))|(?P<other>.)",
    re.DOTALL,
)
#: ``--rtol`` or ``--rtol=1``. Python would read two minus signs, which nobody writes so.
_OPTION = re.compile(r"--[A-Za-z][\w-]*(?:=.*)?", re.DOTALL)


def split_words(text: str) -> list[str]:
    """Cut a line at spaces that are not within quotes or brackets; leaves out a comment.

    >>> split_words("cfg['a b'] f(x, y) -r 0  # why")
    ["cfg['a b']", 'f(x, y)', '-r', '0']
    """
    words = [""]
    depth = 0
    for piece in _PIECE.finditer(text):
        if depth == 0 and piece["space"]:
            words.append("")
            continue
        if depth == 0 and piece["comment"] and not words[-1]:
            break
        depth = max(0, depth + bool(piece["open"]) - bool(piece["close"]))
        words[-1] += piece[0]
    return [word for word in words if word]


class NamesParser(Parser):
    """Reads names of variables, which are what its only argument without a dash takes."""

    def read(self, text: str) -> argparse.Namespace:
        """Read what stands behind the verb. Raises `BadOptionError`."""
        found = self.parse(split_words(text))
        names = [part for word in found.names for part in re.split(r"[,'\"]+", word) if part]
        if names != found.names and all(name.isidentifier() for name in names):
            raise BadOptionError(
                f"{self.prog} takes names without commas and quotes, and got "
                f"{' '.join(found.names)!r}. Next: {self.prog} {' '.join(names)}"
            )
        return found


class ExpressionParser(Parser):
    """Reads expressions, which are what its only argument without a dash takes.

    Options stand before or behind them. A word such as ``--rtol`` behind a whole expression is an
    option that does not exist, and not two minus signs.
    """

    def read(self, text: str) -> argparse.Namespace:
        """Read what stands behind the verb. Raises `BadOptionError`."""
        (values,) = (action for action in self.arguments() if not action.option_strings)
        words, options = self._separate(split_words(text))
        if not words:
            return self.parse(options)
        found = self.parse([*options, "--", " ".join(words)])
        if values.nargs == "*":
            setattr(found, values.dest, self._several(words))
        else:
            self._check_single(words)
        return found

    def _separate(self, words: list[str]) -> tuple[list[str], list[str]]:
        """The words of expressions, and those of options."""
        expression: list[str] = []
        options: list[str] = []
        at = 0
        while at < len(words):
            name, equals, _ = words[at].partition("=")
            action = self._option_string_actions.get(name)
            if action is not None:
                end = at + 1 if equals or action.nargs == 0 else at + 2
                options += words[at:end]
                at = end
                continue
            if _OPTION.fullmatch(words[at]) and _may_end(expression):
                self._refuse(words, at)
            expression.append(words[at])
            at += 1
        return expression, options

    def _refuse(self, words: list[str], at: int) -> NoReturn:
        """Raises `BadOptionError` for an option that does not exist."""
        unknown = words[at]
        named = self._named(unknown)
        if named != [unknown]:
            line = " ".join([self.prog, *words[:at], *named, *words[at + 1 :]])
            raise BadOptionError(f"{self.prog}: unknown: {unknown}. Did you mean {line}?")
        text = " ".join(words)
        if at and _parsed(text) is not None:
            unknown += f" (for two minus signs write ({text}))"
        self.error(f"unknown: {unknown}")

    def _check_single(self, words: list[str]) -> None:
        text = " ".join(words)
        if _parsed(text) is not None:
            return
        several = _expressions(words)
        if several:
            got = " and ".join(several)
            raise BadOptionError(
                f"{self.prog} takes one expression, and got {len(several)}: {got}. "
                f"Next: {self.prog} ({', '.join(several)}), or a line for each"
            )
        raise self._no_expression(text)

    def _several(self, words: list[str]) -> list[str]:
        found = _expressions(words)
        if found is None:
            raise self._no_expression(" ".join(words))
        for expression in found:
            if (quoted := _quoted(expression)) is not None:
                raise BadOptionError(
                    f"{self.prog}: {expression} is a text, which is the same everywhere. "
                    f"Next: {self.prog} {quoted or 'model'}, without the quotes"
                )
        return found

    def _no_expression(self, text: str) -> BadOptionError:
        return BadOptionError(
            f"{self.prog}: {text!r} is not an expression ({_fault(text)}). "
            f"Next: {self.prog} model, or {self.prog} model.state_dict() [-r RANKS]"
        )


def _expressions(words: Sequence[str]) -> list[str] | None:
    """The longest expressions that these words make, one after another; None: they make none."""
    found = []
    left = list(words)
    while left:
        ends = range(len(left), 0, -1)
        end = next((end for end in ends if _parsed(" ".join(left[:end])) is not None), None)
        if end is None:
            return None
        found.append(" ".join(left[:end]))
        del left[:end]
    return found


def _may_end(words: Sequence[str]) -> bool:
    """Whether an expression may end behind these words, or none has begun."""
    tails = (" ".join(words[at:]) for at in range(len(words)))
    return not words or any(_parsed(tail) is not None for tail in tails)


def _quoted(text: str) -> str | None:
    """What is inside of the quotes; None: it is not in quotes."""
    found = _parsed(text)
    if isinstance(found, ast.Constant) and isinstance(found.value, str):
        return found.value.strip()
    return None


def _parsed(text: str) -> ast.expr | None:
    try:
        return _parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _fault(text: str) -> str:
    """What Python says of a text that is no expression."""
    try:
        _parse(text)
    except SyntaxError as error:
        return error.msg
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error)
    return ""


def _parse(text: str) -> ast.expr:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the ranks say it
        return ast.parse(text, "<line>", "eval").body
