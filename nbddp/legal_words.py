"""The end of an error about a word that is not legal: a word that it is like, and the legal ones.

Runs in: every process. Pure.
"""

import difflib
from collections.abc import Iterable


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
    guess = f". Did you mean {before}{guesses[0]}? Legal" if guesses else "; legal"
    return f"{guess}: {', '.join(words)}"
