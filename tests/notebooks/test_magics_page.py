"""The examples of ``docs/magics.md`` and ``docs/debugging.md``, each page in one kernel."""

from collections.abc import Iterator

import pytest

from tests.support import magics_page
from tests.support.kernel import Kernel

_UPDATE = "python -m tests.support.magics_page writes the outputs into the pages"


@pytest.fixture(scope="module")
def page_kernel() -> Iterator[Kernel]:
    yield from magics_page.running()


@pytest.fixture
def debugging_kernel() -> Iterator[Kernel]:
    yield from magics_page.running()


def test_every_example_succeeds_and_shows_what_the_page_quotes(page_kernel: Kernel):
    wrong = []
    for magic, text in magics_page.sections().items():
        for example in magics_page.examples(text):
            got = magics_page.run(page_kernel, example)
            if not magics_page.is_alike(example.output, got):
                wrong.append(f"{magic}\n--- quoted\n{example.output}\n--- shown\n{got}")
    assert not wrong, "\n\n".join([*wrong, _UPDATE])


@pytest.mark.full  # the page of the magics has prompts, too
def test_the_examples_of_debugging_show_what_the_page_quotes(debugging_kernel: Kernel):
    wrong = []
    for example in magics_page.examples(magics_page.DEBUGGING.read_text(encoding="utf-8")):
        got = magics_page.run(debugging_kernel, example)
        if not magics_page.is_alike(example.output, got):
            wrong.append(f"--- quoted\n{example.output}\n--- shown\n{got}")
    assert not wrong, "\n\n".join([*wrong, _UPDATE])
