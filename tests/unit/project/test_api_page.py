"""``docs/api.md`` says what the docstrings say."""

from tests.support import api_page


def test_the_page_is_up_to_date():
    """If not: ``python -m tests.support.api_page``."""
    assert api_page.PAGE.read_text(encoding="utf-8") == api_page.page()
