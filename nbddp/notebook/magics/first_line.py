"""Lets comments and empty lines stand above ``%%ddp``.

Runs in: the notebook's process, as an input transformer of IPython. Pure.
"""

import re

_MAGIC = re.compile(r"%%ddp(?=\s|$)")


def move_up(lines: list[str]) -> list[str]:
    r"""Move ``%%ddp`` to the first line, where IPython wants it; other lines keep their numbers.

    >>> move_up(["# all ranks\n", "%%ddp\n", "print(rank)\n"])
    ['%%ddp\n', '# all ranks\n', 'print(rank)\n']
    """
    for number, line in enumerate(lines):
        if _MAGIC.match(line):
            magic = line if line.endswith("\n") else f"{line}\n"
            return [magic, *lines[:number], *lines[number + 1 :]] if number else lines
        if line.strip() and not line.lstrip().startswith("#"):
            break
    return lines
