"""The public names of nbddp, and what their docstrings say."""

import inspect
from typing import Any

import nbddp
from nbddp import errors
from nbddp.controller import options
from nbddp.controller.diagnosis import report
from nbddp.controller.launch import engine
from nbddp.controller.pool import CatchUp, Pool
from nbddp.controller.state import config, outcome, rank_state
from nbddp.controller.values import result
from nbddp.notebook.magics.async_handle import CellHandle
from nbddp.wire.rank_set import RankSet

#: Members that only nbddp itself calls say so.
_INTERNAL = ("For the notebook layer", "For the layer of the pool")

#: What a user gets from the functions below, or from each other; last, what a package extends.
CLASSES: tuple[type, ...] = (
    Pool,
    options.PoolOptions,
    CatchUp,
    outcome.RunOutcome,
    outcome.RankResult,
    rank_state.RankInfo,
    rank_state.RankState,
    config.Config,
    result.Difference,
    result.LeafDifference,
    result.Detail,
    report.Report,
    report.Finding,
    report.PerRank,
    report.GroupRef,
    CellHandle,
    RankSet,
    engine.EngineOptions,
    engine.LostNode,
    engine.Engine,
    engine.ReplacingEngine,
)
FUNCTIONS = [
    *(getattr(nbddp, name) for name in nbddp.__all__ if inspect.isfunction(getattr(nbddp, name))),
    nbddp.faults.inject,
]
ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)
          if issubclass(kind, errors.NbddpError)]  # fmt: skip


def members(owner: type) -> dict[str, Any]:
    """The public methods and properties of a class, in the order of the source."""
    return {
        name: member
        for name, member in vars(owner).items()
        if not name.startswith("_")
        and (inspect.isroutine(member) or isinstance(member, property | classmethod))
    }


def documented() -> dict[str, Any]:
    """What has an example of its own, by its name."""
    classes = {kind.__name__: kind for kind in (*CLASSES, *ERRORS)}
    return {
        **{function.__name__: function for function in FUNCTIONS},
        **classes,
        **{
            f"{owner}.{name}": member
            for owner, kind in classes.items()
            for name, member in members(kind).items()
        },
    }


def text_of(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__ or "")


def is_internal(thing: Any) -> bool:
    return any(words in text_of(thing) for words in _INTERNAL)
