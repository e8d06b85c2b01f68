"""The examples of ``docs/magics.md``, in the order of the page, in one kernel with one pool."""

from collections.abc import Iterator

import pytest

from tests.support import magics_page
from tests.support.kernel import Kernel


@pytest.fixture(scope="module")
def page_kernel() -> Iterator[Kernel]:
    yield from magics_page.running()


def test_every_example_succeeds_and_shows_what_the_page_quotes(page_kernel: Kernel):
    wrong = []
    for magic, text in magics_page.sections().items():
        for example in magics_page.examples(text):
            got = magics_page.run(page_kernel, example)
            if not magics_page.is_alike(example.output, got):
                wrong.append(f"{magic}\n--- quoted\n{example.output}\n--- shown\n{got}")
    update = "python -m tests.support.magics_page writes the outputs into the page"
    assert not wrong, "\n\n".join([*wrong, update])
