"""A real kernel with a pool, shared by the tests that leave it as they found it."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.kernel import Kernel, running_kernel


class SharedKernel:
    """One kernel for all, until a test leaves it in a state that would fail the next one."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._kernel: Kernel | None = None

    def get(self) -> Kernel:
        if self._kernel is None:
            self._kernel = self._stack.enter_context(running_kernel())
            self._kernel.ok("%load_ext nbddp")
            self._kernel.ok("%ddp start -n 2")
        return self._kernel

    def close(self) -> None:
        self._kernel = None
        self._stack.close()


@pytest.fixture(scope="package")
def kernels() -> Iterator[SharedKernel]:
    shared = SharedKernel()
    yield shared
    shared.close()


@pytest.fixture
def shared_kernel(kernels: SharedKernel) -> Iterator[Kernel]:
    """A test may leave names behind, and a pool that works."""
    kernel = kernels.get()
    yield kernel
    try:
        after = kernel.run("%%ddp\nprint('healthy')")
        assert (after.status, after.text) == ("ok", "[0-1] healthy\n"), after
    except BaseException:
        kernels.close()
        raise


@pytest.fixture
def kernel(shared_kernel: Kernel) -> Kernel:
    return shared_kernel
