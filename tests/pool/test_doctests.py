"""The examples of the public API run as they are written, and no public name lacks one.

The examples of a class share names: those of its docstring come first. All of them find ``nbddp``,
``pool`` (two ranks on a CPU, as `nbddp.start` gives them) and ``get_ipython``.
"""

import doctest
import inspect
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import nbddp
from nbddp.controller.launch import Engine, ReplacingEngine
from nbddp.controller.pool.pool import Pool
from nbddp.settings import POOLS_DIR_ENV
from tests.support.public_api import (
    CLASSES,
    ERRORS,
    FUNCTIONS,
    documented,
    is_internal,
    members,
    text_of,
)

_FLAGS = doctest.ELLIPSIS | doctest.REPORT_NDIFF

NAMES = [thing.__name__ for thing in (*FUNCTIONS, *CLASSES)]
ERROR_NAMES = [kind.__name__ for kind in ERRORS]
#: Names without an example, and why.
WITHOUT_EXAMPLE = {
    "AgentJoinError": "`nbddp agent` prints it, in a process of its own",
    "BadMessageError": "never reaches the user: such a message is dropped",
    "InvalidTransitionError": "a bug in nbddp",
    "NoTorchError": "needs an environment without torch",
    "PoolAttachError": "needs a pool that does not answer",
    "PoolStartError": "needs a start that fails",
    "PoolInterruptedError": "needs the stop button",
    "TransferInterruptedError": "needs the stop button",
    "TooLargeError": "needs a display of 512 MiB",
    "CollectiveError": "raised on ranks",
    "CollectiveAbortedError": "raised on ranks",
    "CollectiveFailedError": "raised on ranks",
    "CollectiveMismatchError": "raised on ranks",
    "CollectiveRefusedError": "raised on ranks",
    **{
        f"{engine.__name__}.{name}": "the example of the class has it"
        for engine in (Engine, ReplacingEngine)
        for name in members(engine)
    },
}

#: Evidence as the diagnosis uses it: plain fields, with a comment for each.
EVIDENCE = {"Diagnosed", "Mismatch"}


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


def lets_the_pool_go(test: doctest.DocTest) -> bool:
    return any(".detach(" in example.source for example in test.examples)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[InteractiveShell]:
    traits = Config()
    traits.HistoryManager.enabled = False
    traits.InteractiveShell.ipython_dir = str(tmp_path)
    yield InteractiveShell.instance(config=traits)
    InteractiveShell.clear_instance()


@pytest.fixture
def started(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    with tempfile.TemporaryDirectory(prefix="nbt-") as folder:
        monkeypatch.setenv(POOLS_DIR_ENV, folder)  # the examples know no pools of other programs
        pool = nbddp.start(2)
        yield pool
        pool.stop()


@pytest.mark.timeout(180)
def test_the_examples_show_what_they_quote(started: Pool, shell: InteractiveShell):
    """On one pool, which some examples end; the last ones let another one go, and take it back."""
    tests = examples_of([*NAMES, *(name for name in ERROR_NAMES if name not in WITHOUT_EXAMPLE)])
    leaving = [test for test in tests if lets_the_pool_go(test)]
    tests = [test for test in tests if test not in leaving]
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
    names = {"nbddp": nbddp, "pool": nbddp.start(2)}
    for test in leaving:
        test.globs = names
        doctest.DocTestRunner(optionflags=_FLAGS).run(test, out=said.append, clear_globs=False)
    names["pool"].stop()
    assert len(leaving) >= 2
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
