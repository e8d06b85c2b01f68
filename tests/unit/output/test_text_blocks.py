"""Lines that belong together."""

import pytest
import torch

from nbddp.notebook.output.text_blocks import continues

FRAME = "   step  loss\n0     1   0.5\n1     2   0.4"
TABLE = "+---+---+\n| a | b |\n+---+---+\n| 1 | 2 |\n+---+---+"
BOX = "┌───┬───┐\n│ a │ b │\n└───┴───┘"
TRACE = 'Traceback (most recent call last):\n  File "x", line 1\n    f()\nValueError: bad batch'
NESTED = "{'a': [1,\n       2],\n 'b': {\n    'c': 3\n}}"


def blocks_of(text: str) -> list[str]:
    blocks: list[list[str]] = []
    for line in text.split("\n"):
        if blocks and continues(blocks[-1], line):
            blocks[-1].append(line)
        else:
            blocks.append([line])
    return ["\n".join(block) for block in blocks]


@pytest.mark.parametrize(
    "block",
    [
        str(torch.zeros(3, 2)),
        str(torch.zeros(2, 2, 2)),
        str([torch.zeros(2, 2), torch.ones(2, 2)]),
        FRAME,
        TABLE,
        BOX,
        TRACE,
        NESTED,
        "Linear(\n  (a): x\n)",
    ],
)
def test_a_printed_value_is_one_block_between_others(block: str):
    assert blocks_of(f"before\n{block}\nafter")[-1] == "after"
    whole = blocks_of(f"before\n{block}\nafter")
    assert whole in (["before", block, "after"], [f"before\n{block}", "after"])


@pytest.mark.parametrize("text", ["step 0\nstep 1", "a\n\nb", "f(x,y)\ng", "a, b,\nc", ")\n)", ""])
def test_other_lines_are_blocks_of_their_own(text: str):
    assert blocks_of(text) == text.split("\n")


def test_a_block_has_an_end():
    assert len(blocks_of("\n".join(["begin", *["  indented"] * 1000]))) > 4
