"""``%ddp vars`` and ``%ddp diff``: ask the ranks, show the answer.

Runs in: the notebook's process, thread of the running cell.
"""

from IPython.display import display

from nbddp.controller.transfers import told_when_stopped
from nbddp.notebook import differences, expressions, session, variables

VERBS = ("vars", "diff")


def is_for(line: str) -> bool:
    """Whether this line of ``%ddp`` is one of ours; the quotes in its expression are Python's."""
    return line.split(maxsplit=1)[:1] in ([verb] for verb in VERBS)


def run(line: str) -> None:
    """Do what it says. Raises what the pool raises."""
    verb, _, rest = line.strip().partition(" ")
    with told_when_stopped(f"%ddp {verb}"):
        if verb == "vars":
            names, ranks = expressions.parse_vars(rest)
            pool = session.pool()
            told = pool.told_variables(names, ranks=ranks)
            display(variables.bundle(told, tuple(names), pool.world_size), raw=True)
            return
        wanted, ranks = expressions.parse_diff(rest)
        for expression in wanted:
            found = session.pool().diff(expression, ranks=ranks)
            display(differences.bundle(found), raw=True)
