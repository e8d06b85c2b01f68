"""The examples of the public API run as they are written, and no public name lacks one.

The examples of a class share names: those of its docstring come first. All of them find ``nbddp``,
``pool`` (two ranks on a CPU, as `nbddp.start` gives them) and ``get_ipython``.
"""

import doctest
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import nbddp
from nbddp import errors
from nbddp.controller import options
from nbddp.controller.diagnosis import report
from nbddp.controller.pool.pool import Pool
from nbddp.controller.state import config, outcome, rank_state
from nbddp.controller.values import result
from nbddp.notebook.magics.async_handle import CellHandle
from nbddp.wire.rank_set import RankSet

#: Members that only nbddp itself calls say so.
_INTERNAL = ("For the notebook layer", "For the layer of the pool")
_FLAGS = doctest.ELLIPSIS | doctest.REPORT_NDIFF

#: What a user gets from the functions below, or from each other.
CLASSES: tuple[type, ...] = (
    Pool,
    options.PoolOptions,
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
)
FUNCTIONS = [
    getattr(nbddp, name) for name in nbddp.__all__ if inspect.isfunction(getattr(nbddp, name))
]
ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)
          if issubclass(kind, errors.NbddpError)]  # fmt: skip

NAMES = [thing.__name__ for thing in (*FUNCTIONS, *CLASSES)]
ERROR_NAMES = [kind.__name__ for kind in ERRORS]
#: Errors without an example, and why.
WITHOUT_EXAMPLE = {
    "BadMessageError": "never reaches the user: such a message is dropped",
    "InvalidTransitionError": "a bug in nbddp",
    "NoTorchError": "needs an environment without torch",
    "PoolStartError": "needs a start that fails",
    "PoolInterruptedError": "needs the stop button",
    "TransferInterruptedError": "needs the stop button",
    "TooLargeError": "needs a display of 512 MiB",
    "CollectiveError": "raised on ranks",
    "CollectiveAbortedError": "raised on ranks",
    "CollectiveFailedError": "raised on ranks",
    "CollectiveMismatchError": "raised on ranks",
    "CollectiveRefusedError": "raised on ranks",
}

#: Evidence as the diagnosis uses it: plain fields, with a comment for each.
EVIDENCE = {"Diagnosed", "Mismatch"}


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


def examples_of(names: Iterable[str]) -> list[doctest.DocTest]:
    """The examples of functions, and of classes and their members, in this order."""
    things = documented()
    parser = doctest.DocTestParser()
    tests = [
        parser.get_doctest(text_of(things[each]), {}, each, None, 0)
        for name in names
        for each in things
        if each == name or each.startswith(f"{name}.")
    ]
    return [test for test in tests if test.examples]


def ends_the_pool(test: doctest.DocTest) -> bool:
    return any(".stop()" in example.source for example in test.examples)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[InteractiveShell]:
    traits = Config()
    traits.HistoryManager.enabled = False
    traits.InteractiveShell.ipython_dir = str(tmp_path)
    yield InteractiveShell.instance(config=traits)
    InteractiveShell.clear_instance()


@pytest.fixture
def started(shell: InteractiveShell) -> Iterator[Pool]:
    pool = nbddp.start(2)
    yield pool
    pool.stop()


@pytest.mark.timeout(180)
def test_the_examples_show_what_they_quote(started: Pool, shell: InteractiveShell):
    """On one pool, which the last examples end."""
    tests = examples_of([*NAMES, *(name for name in ERROR_NAMES if name not in WITHOUT_EXAMPLE)])
    lasting = [test for test in tests if not ends_the_pool(test)]
    ending = [test for test in tests if ends_the_pool(test)]
    assert len(ending) >= 3
    # It stops the pool at the end of its block.
    package = doctest.DocTestParser().get_doctest(nbddp.__doc__ or "", {}, "nbddp", None, 0)
    said: list[str] = []
    names: dict[str, Any] = {}
    for test in [*lasting, package, *ending]:
        if "." not in test.name:
            names = {"nbddp": nbddp, "pool": started, "get_ipython": lambda: shell}
        test.globs = names
        doctest.DocTestRunner(optionflags=_FLAGS).run(test, out=said.append, clear_globs=False)
    assert not said, "".join(said)


def test_each_public_name_has_an_example():
    lacking = [
        name
        for name, thing in documented().items()
        if ">>>" not in text_of(thing) and not is_internal(thing)
    ]
    assert sorted(lacking) == sorted(WITHOUT_EXAMPLE)


def classes_in(annotation: Any) -> set[str]:
    """The classes of nbddp in an annotation."""
    if isinstance(annotation, type) and annotation.__module__.startswith("nbddp."):
        return {annotation.__name__}
    return {name for part in get_args(annotation) for name in classes_in(part)}


def test_each_class_that_a_method_returns_is_looked_at():
    returned = set()
    for thing in documented().values():
        if is_internal(thing):
            continue
        call = thing.fget if isinstance(thing, property) else getattr(thing, "__func__", thing)
        if inspect.isfunction(call):
            returned |= classes_in(inspect.signature(call).return_annotation)
    assert {"RunOutcome", "Difference", "Report", "Config", "RankInfo", "RankSet"} <= returned
    assert returned - {*NAMES, *ERROR_NAMES} == EVIDENCE


def test_each_name_of_the_package_is_looked_at():
    assert set(nbddp.__all__) <= {*NAMES, *ERROR_NAMES}
