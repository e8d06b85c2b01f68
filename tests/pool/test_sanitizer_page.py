"""The examples of docs/sanitizer.md print what stands there."""

import re
from pathlib import Path

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.controller.state import VerdictReached
from nbddp.notebook.render import diagnosis_card
from tests.support.views import run_cell

_PAGE = Path(__file__).parents[2] / "docs" / "sanitizer.md"
_EXAMPLE = re.compile(r"```python\n%%ddp --sanitize( data)?\n(.*?)```\n```\n(.*?)\n```", re.DOTALL)


@pytest.mark.full
def test_each_example(pool: Pool):
    examples = _EXAMPLE.findall(_PAGE.read_text())
    assert len(examples) >= 3
    for number, (data, code, shown) in enumerate(examples, 1):
        if not data:
            pool.restart()  # operations count from 1
        view = run_cell(
            pool,
            code,
            sanitize=not data,
            sanitize_data=bool(data),
            execution_count=number,
            first_line=2,
        )
        (event,) = (each for each in view.events if isinstance(each, VerdictReached))
        card = diagnosis_card.card(event.report, is_over=True)
        assert card["text/plain"] == shown
