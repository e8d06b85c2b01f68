"""The tests of ``torch.distributed`` that come with torch, as classes that a rank can run.

Runs in: the process that drives the pools, to list them, and in ranks, to run them.

Sources: ``torch/testing/_internal/distributed``; which class goes with which agent is in
``rpc_utils.py`` there. Classes whose tests all need GPUs are left out.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

#: `distributed_test` reads these when it is imported. The number of ranks decides what is skipped.
_ENVIRONMENT = {"BACKEND": "gloo", "WORLD_SIZE": "3"}


@dataclass(frozen=True)
class TorchTest:
    """One test method, and how many ranks it wants."""

    suite: str
    method: str
    ranks: int
    #: It wants processes of its own. torch's context of remote references can be used once in a
    #: process: after ``rpc.shutdown`` the next one waits forever in its own shutdown.
    fresh: bool

    @property
    def name(self) -> str:
        return f"{self.suite}.{self.method}"


@cache
def classes() -> dict[str, type[Any]]:
    """By name; imports torch and its tests."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from torch.testing._internal.common_distributed import MultiProcessTestCase
    from torch.testing._internal.distributed import distributed_test, rpc_utils
    from torch.testing._internal.distributed.rpc import (
        tensorpipe_rpc_agent_test_fixture as tensorpipe,
    )

    base = distributed_test.DistributedTest._DistTestBase
    found: dict[str, type[Any]] = {
        "DistributedTest": type("DistributedTest", (distributed_test.TestDistBackend, base), {})
    }
    for name in vars(distributed_test):
        if name.startswith("TestBucketCapacityConfig"):
            found[name] = getattr(distributed_test, name)
    for test in (*rpc_utils.GENERIC_TESTS, *rpc_utils.TENSORPIPE_TESTS):
        bases = (test, tensorpipe.TensorPipeRpcAgentTestFixture, MultiProcessTestCase)
        found[test.__name__] = type(test.__name__, bases, {})
    return _named(found)


@cache
def faulty_classes() -> dict[str, type[Any]]:
    """Those of the agent that loses messages.

    It exchanges the table of agents for another one, which some of the other tests do not stand:
    nothing else may run in the same process afterwards.
    """
    classes()
    from torch.testing._internal.common_distributed import MultiProcessTestCase
    from torch.testing._internal.distributed import rpc_utils
    from torch.testing._internal.distributed.rpc import (
        faulty_rpc_agent_test_fixture as faulty,
    )

    found = {}
    for test in rpc_utils.FAULTY_AGENT_TESTS:
        bases = (test, faulty.FaultyRpcAgentTestFixture, MultiProcessTestCase)
        found[test.__name__] = type(test.__name__, bases, {})
    return _named(found)


def class_of(suite: str) -> type[Any]:
    """The class of this name."""
    return classes().get(suite) or faulty_classes()[suite]


def _named(found: dict[str, type[Any]]) -> dict[str, type[Any]]:
    for name, made in found.items():
        made.__module__ = __name__
        globals()[name] = made  # pickled by reference by some tests
    return found


def all_tests(sizes: Sequence[int]) -> list[TorchTest]:
    """Those with equally many ranks together.

    Args:
        sizes: numbers of ranks, with each of which a test runs that takes any number.
    """
    every = classes() | faulty_classes()
    found = [
        TorchTest(name, method, ranks, hasattr(made, "rpc_backend"))
        for name, made in every.items()
        for ranks in _ranks(made, sizes)
        for method in _methods(made)
    ]
    order = {name: place for place, name in enumerate(every)}
    return sorted(found, key=lambda test: (test.ranks, order[test.suite]))


def _methods(made: type[Any]) -> Iterator[str]:
    return (name for name in dir(made) if name.startswith("test_"))


def _ranks(made: type[Any], sizes: Sequence[int]) -> Sequence[int]:
    size = getattr(made, "world_size", None)
    if not isinstance(size, property) or size.fget is None:
        return sizes[:1]  # a plain unit test
    wanted = size.fget(None)
    return [wanted] if isinstance(wanted, int) else sizes  # the latter reads WORLD_SIZE
