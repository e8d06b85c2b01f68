"""``nbddp ...`` on a command line.

    nbddp kernel install -n 4     add "Python (nbddp, 4 ranks)" to Jupyter
    nbddp kernel list             what was added
    nbddp kernel remove NAME      take it away again
    nbddp console -r 2            a terminal on one rank of a pool that a notebook has started

``python -m nbddp`` does the same. Runs in: a process of its own.
"""

import argparse
import sys
from collections.abc import Sequence

from nbddp.cli import console, kernels
from nbddp.errors import NbddpError


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line says; gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="nbddp", description="Run a torch.distributed job from a notebook."
    )
    parser.set_defaults(run=lambda _: parser.format_help().splitlines())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    kernels.add_to(commands)
    console.add_to(commands)
    found = parser.parse_args(words)
    try:
        lines: list[str] = found.run(found)
    except (NbddpError, OSError) as error:
        sys.stderr.write(f"nbddp: {error}\n")
        return 1
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0
