"""Parsers of lines with Python names or expressions, whose quotes and brackets are Python's.

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
#: ``--rtol`` or ``--rtol=1``. Python would read two minus signs, which is unlikely in practice.
_OPTION = re.compile(r"--[A-Za-z][\w-]*(?:=.*)?", re.DOTALL)


def split_words(text: str) -> list[str]:
    """Cut a line at spaces outside quotes and brackets; a comment is left out.

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
    """A parser whose one positional argument takes names of variables."""

    def read(self, text: str) -> argparse.Namespace:
        """Read the text behind the verb.

        Raises:
            BadOptionError: the text is not legal, or names have commas or quotes.
        """
        namespace = self.parse(split_words(text))
        names = [part for word in namespace.names for part in re.split(r"[,'\"]+", word) if part]
        if names != namespace.names and all(name.isidentifier() for name in names):
            raise BadOptionError(
                f"{self.prog} takes names without commas and quotes, and got "
                f"{' '.join(namespace.names)!r}. Next: {self.prog} {' '.join(names)}"
            )
        return namespace


class ExpressionParser(Parser):
    """A parser whose one positional argument takes expressions.

    Options stand before or behind them. A word such as ``--rtol`` behind a whole expression is an
    option that does not exist, and not two minus signs.
    """

    def read(self, text: str) -> argparse.Namespace:
        """Read the text behind the verb.

        Raises:
            BadOptionError: an option is not legal, or a word is not an expression.
        """
        (values,) = (action for action in self.arguments() if not action.option_strings)
        words, options = self._separate(split_words(text))
        if not words:
            return self.parse(options)
        namespace = self.parse([*options, "--", " ".join(words)])
        if values.nargs == "*":
            setattr(namespace, values.dest, self._several(words))
        else:
            self._check_single(words)
        return namespace

    def _separate(self, words: list[str]) -> tuple[list[str], list[str]]:
        """Separate the words of expressions from those of options."""
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
            if _OPTION.fullmatch(words[at]) and _can_end(expression):
                self._refuse(words, at)
            expression.append(words[at])
            at += 1
        return expression, options

    def _refuse(self, words: list[str], at: int) -> NoReturn:
        """Raise `BadOptionError` for an option that does not exist."""
        unknown = words[at]
        corrected = self._correct(unknown)
        if corrected != [unknown]:
            line = " ".join([self.prog, *words[:at], *corrected, *words[at + 1 :]])
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
        expressions = _expressions(words)
        if expressions is None:
            raise self._no_expression(" ".join(words))
        for expression in expressions:
            if (quoted := _quoted(expression)) is not None:
                raise BadOptionError(
                    f"{self.prog}: {expression} is a text, which is the same everywhere. "
                    f"Next: {self.prog} {quoted or 'model'}, without the quotes"
                )
        return expressions

    def _no_expression(self, text: str) -> BadOptionError:
        return BadOptionError(
            f"{self.prog}: {text!r} is not an expression ({_syntax_error(text)}). "
            f"Next: {self.prog} model, or {self.prog} model.state_dict() [-r RANKS]"
        )


def _expressions(words: Sequence[str]) -> list[str] | None:
    """Join words to the longest expressions, one after another; None: some are no expression."""
    expressions = []
    remaining = list(words)
    while remaining:
        ends = range(len(remaining), 0, -1)
        end = next((end for end in ends if _parsed(" ".join(remaining[:end])) is not None), None)
        if end is None:
            return None
        expressions.append(" ".join(remaining[:end]))
        del remaining[:end]
    return expressions


def _can_end(words: Sequence[str]) -> bool:
    """Whether an expression can end behind these words, or none has begun."""
    tails = (" ".join(words[at:]) for at in range(len(words)))
    return not words or any(_parsed(tail) is not None for tail in tails)


def _quoted(text: str) -> str | None:
    """The text inside the quotes; None: ``text`` is not in quotes."""
    parsed = _parsed(text)
    if isinstance(parsed, ast.Constant) and isinstance(parsed.value, str):
        return parsed.value.strip()
    return None


def _parsed(text: str) -> ast.expr | None:
    try:
        return _parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _syntax_error(text: str) -> str:
    """Python's message about a text that is no expression."""
    try:
        _parse(text)
    except SyntaxError as error:
        return error.msg
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error)
    return ""


def _parse(text: str) -> ast.expr:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the ranks print warnings
        return ast.parse(text, "<line>", "eval").body
