"""``docs/api.md`` says what the docstrings say."""

import inspect
import re
from collections.abc import Iterator

from tests.support import api_page
from tests.support.public_api import documented, is_internal, text_of


def test_the_page_is_up_to_date():
    """If not: ``python -m tests.support.api_page``."""
    assert api_page.PAGE.read_text(encoding="utf-8") == api_page.page()


def undocumented() -> Iterator[str]:
    """What the docstrings of public functions leave out."""
    for name, thing in documented().items():
        function = getattr(thing, "__func__", thing)
        if is_internal(thing) or not inspect.isfunction(function):
            continue
        text, signature = text_of(thing), inspect.signature(function)
        arguments = _ARGUMENTS.search(text)
        told = set(_NAME.findall(arguments[1])) if arguments is not None else set()
        parameters = set(signature.parameters) - {"self", "cls"}
        yield from (f"{name}: argument {each}" for each in parameters - told)
        returns = signature.return_annotation not in (None, "None")
        if parameters and returns and "Returns:\n" not in text:
            yield f"{name}: what it returns"
        if _RAISE.search(inspect.getsource(function)) and "Raises:\n" not in text:
            yield f"{name}: what it raises"


_ARGUMENTS = re.compile(r"^Args:\n((?: {4}.*\n|\n)*)", re.MULTILINE)
_NAME = re.compile(r"^ {4}\**(\w+):", re.MULTILINE)
_RAISE = re.compile(r"^ +raise \w", re.MULTILINE)


def test_docstrings_have_all_arguments_what_is_returned_and_what_is_raised():
    assert sorted(undocumented()) == []
