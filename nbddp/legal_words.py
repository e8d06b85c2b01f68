"""The end of an error about a word or an option that is not legal: a guess, and the legal ones.

Runs in: every process. Pure.
"""

import difflib
from collections.abc import Iterable, Sequence


def legal_words(word: str, legal: Iterable[str], *, before: str = "", alike: float = 0.6) -> str:
    """Return the words that are legal, behind a guess at the one that was meant.

    Args:
        word: the one that is not legal.
        legal: the legal ones, in order.
        before: a text in front of the guess, such as ``%ddp ``.
        alike: the least likeness of a guess, see `difflib.get_close_matches`.

    >>> print("there is no verb 'stat'" + legal_words("stat", ["start", "stop"], before="%ddp "))
    there is no verb 'stat'. Did you mean %ddp start? Legal: start, stop
    >>> print("there is no verb 'x'" + legal_words("x", ["start", "stop"]))
    there is no verb 'x'; legal: start, stop
    """
    words = list(legal)
    guesses = difflib.get_close_matches(word, words, n=1, cutoff=alike)
    return guess_and_legal([f"{before}{guess}" for guess in guesses], words)


def guess_and_legal(guesses: Sequence[str], legal: Iterable[str]) -> str:
    """Return guesses at the words that were meant, if there are any, and the legal ones.

    >>> guess_and_legal(["-r 0", "--out ranks"], ["-r RANKS", "--out merged|ranks|quiet"])
    '. Did you mean -r 0 or --out ranks? Legal: -r RANKS, --out merged|ranks|quiet'
    """
    guess = f". Did you mean {' or '.join(guesses)}? Legal" if guesses else "; legal"
    return f"{guess}: {', '.join(legal)}"
