"""The page that notebooks/execute.py writes for a browser."""

import re
from html import unescape

import pytest

from notebooks.execute import highlight_cell

IMPORT = '<span class="kn">import</span>'


def text_of(page: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page)).strip("\n")


@pytest.mark.parametrize("first", ["", "%%ddp\n", "%%ddp -r 0,2-3 --timeout 5\n\n", "%%time\n"])
def test_the_body_of_a_cell_is_coloured_as_python(first: str):
    source = f"{first}import torch\n\n!ls\nx = '<&>'"
    page = highlight_cell(source, {})
    assert IMPORT in page
    assert text_of(page) == source


@pytest.mark.parametrize("source", ["%%bash\nimport x", "%%ddpother\nimport x", "%%ddp", ""])
def test_other_cells_are_not_coloured(source: str):
    page = highlight_cell(source, {})
    assert IMPORT not in page
    assert text_of(page) == source
