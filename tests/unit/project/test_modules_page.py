"""The page of modules says what the docstrings say."""

from tests.support import modules_page


def test_the_page_of_modules_says_what_the_docstrings_say() -> None:
    """If not: ``python -m tests.support.modules_page``."""
    assert modules_page.PAGE.read_text(encoding="utf-8") == modules_page.page()
