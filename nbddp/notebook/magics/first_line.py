"""Lets comments and empty lines stand above ``%%ddp``.

Runs in: the notebook's process, as an input transformer of IPython. Pure.
"""

import re

_MAGIC = re.compile(r"%%ddp(?=\s|$)")


def move_up(lines: list[str]) -> list[str]:
    r"""Move ``%%ddp`` to the first line, where IPython wants it; the code keeps its line numbers.

    >>> move_up(["# all ranks\n", "%%ddp\n", "print(rank)\n"])
    ['%%ddp\n', '\n', 'print(rank)\n']
    """
    for number, line in enumerate(lines):
        if _MAGIC.match(line):
            magic = line if line.endswith("\n") else f"{line}\n"
            # Empty lines: tracebacks would show comments beside the number of another line.
            return [magic, *["\n"] * number, *lines[number + 1 :]] if number else lines
        if line.strip() and not line.lstrip().startswith("#"):
            break
    return lines
