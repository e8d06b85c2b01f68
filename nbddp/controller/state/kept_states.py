"""The steps that keep the states of modules and optimizers when their cells run again.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Sequence

from nbddp.controller.state.lost_names import LeftOut


def states_of(left: LeftOut) -> list[str]:
    """Return the names of a cell that have a state, such as modules, optimizers and schedulers.

    All steps about one of them name all: an optimizer with its state trains a module that is made
    again from its initial weights.
    """
    return [name for name in left.names if name in left.with_state]


def keep_states_text(names: Sequence[str], source: int) -> str:
    """Return the steps: one before the cells, two after them.

    A model that is made again has its initial weights, whatever the state of its optimizer: each
    name has to be kept.

    Args:
        names: that have a state and are made again; at least one.
        source: the rank that has the states.

    >>> keep_states_text(["m"], 0)[:72]
    'before that, kept = m.state_dict() in a cell that begins with %%ddp -r 0'
    """
    there = f"in a cell that begins with %%ddp -r {source}"
    states = [f"{name}.state_dict()" for name in names]
    parts = ["kept"] if len(names) == 1 else [f"kept[{index}]" for index in range(len(names))]
    loads = [f"{name}.load_state_dict({part})" for name, part in zip(names, parts, strict=True)]
    return (
        f"before that, kept = {', '.join(states)} {there}; after it, {'; '.join(loads)} {there}, "
        f"then nbddp.sync({', '.join(names)}, src={source}) in one on all ranks"
    )
