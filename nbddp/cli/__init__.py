"""The command ``nbddp``.

    nbddp kernel install -n 4     add "Python (nbddp, 4 ranks)" to Jupyter
    nbddp kernel list             list the installed kernels
    nbddp kernel remove NAME      remove one of them
    nbddp console -r 2            open a terminal on one rank of a notebook's pool
    nbddp agent --connect FILE    join a notebook's pool from another machine

``python -m nbddp`` does the same. Runs in: a process of its own.
"""

import argparse
import sys
from collections.abc import Sequence

from nbddp.cli import agent, console, kernels
from nbddp.controller.options import LINE_OPTIONS, with_joined_values
from nbddp.errors import NbddpError


def main(words: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        words: the words of the command line; None: those of this process.

    Returns:
        The exit status: 0, or 1 after an error.

    Raises:
        SystemExit: the words are not legal, or ask for help.
    """
    parser = argparse.ArgumentParser(
        prog="nbddp", description="Run a torch.distributed job from a notebook."
    )
    parser.set_defaults(run=lambda _: parser.format_help().splitlines())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    kernels.add_to(commands)
    console.add_to(commands)
    agent.add_to(commands)
    known = [flag for option in LINE_OPTIONS.values() for flag in option.flags]
    joining = [flag for each in LINE_OPTIONS.values() if each.has_options for flag in each.flags]
    words = sys.argv[1:] if words is None else words
    arguments = parser.parse_args(with_joined_values(words, joining, known))
    try:
        lines: list[str] = arguments.run(arguments)
    except (NbddpError, OSError) as error:
        sys.stderr.write(f"nbddp: {error}\n")
        return 1
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0
