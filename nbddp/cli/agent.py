"""``nbddp agent``: the agent of one node on another machine than the notebook.

Runs in: a process of its own, which an engine or a user starts.
"""

import argparse

from nbddp.agent import remote
from nbddp.agent.invitation_reading import CONNECT_ENV


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``nbddp agent`` to the command line."""
    parser = commands.add_parser(
        "agent", help="join a notebook's pool from another machine, once on each node"
    )
    parser.add_argument(
        "--connect",
        required=True,
        metavar="FILE",
        help="the file that %%ddp listen has written; -: a line on standard input, whose end ends "
        f"the agent unless it is a file; env: the variable {CONNECT_ENV}",
    )
    parser.add_argument(
        "--check", action="store_true", help="say whether this machine could join, and end"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> list[str]:
    return remote.check(arguments.connect) if arguments.check else remote.serve(arguments.connect)
