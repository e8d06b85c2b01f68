"""Words that docs/style.md rules out stay out."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_WORDS = re.compile(
    r"\b(anew|likewise|whoever|so long as|for ever|time-outs?|mend(s|ed|ing)?)\b"
    r"|\b(of|by) the user's[.,;]|\b(a|an) \w+ of torch's[ .,;]",
    re.IGNORECASE,
)
#: A sentence about them.
_QUOTES = ("docs/style.md", "docs/decisions/processes.md", "tests/unit/project/test_style.py")


def texts() -> Iterator[tuple[str, str]]:
    """The lines of code, notebooks and pages, each with its file."""
    pages = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    for folder, ends in (("nbddp", "py"), ("tests", "py"), ("docs", "md"), ("notebooks", "ipynb")):
        pages += (ROOT / folder).rglob(f"*.{ends}")
    for path in pages:
        name = str(path.relative_to(ROOT))
        if name not in _QUOTES:
            yield from ((name, line) for line in path.read_text(encoding="utf-8").splitlines())


def test_old_fashioned_words_stay_out():
    assert [(name, line) for name, line in texts() if _WORDS.search(line)] == []
