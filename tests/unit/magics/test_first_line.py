"""Comments and empty lines above ``%%ddp``."""

import pytest

from nbddp.notebook.extension import move_up


@pytest.mark.parametrize(
    ("cell", "moved"),
    [
        ("%%ddp\nx\n", "%%ddp\nx\n"),
        ("# a\n%%ddp -r 0\nx\n", "%%ddp -r 0\n\nx\n"),
        ("\n  # a\n\n%%ddp\nx\n", "%%ddp\n\n\n\nx\n"),
        ("# a\n%%ddp", "%%ddp\n\n"),
        ("", ""),
        ("# a\n", "# a\n"),
        ("x\n%%ddp\n", "x\n%%ddp\n"),
        ("'''\n%%ddp\n'''\n", "'''\n%%ddp\n'''\n"),
        ("# a\n%%ddpx\n", "# a\n%%ddpx\n"),
        ("# a\n %%ddp\n", "# a\n %%ddp\n"),
        ("# a\n%%time\n", "# a\n%%time\n"),
    ],
)
def test_the_magic_moves_up_and_the_code_keeps_its_lines(cell: str, moved: str):
    assert "".join(move_up(cell.splitlines(keepends=True))) == moved
