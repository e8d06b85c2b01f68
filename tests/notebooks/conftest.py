"""A real kernel with a pool, shared by the tests that leave it as they found it."""

from collections.abc import Iterator

import pytest

from tests.support.kernel import Kernel, running_kernel


@pytest.fixture(scope="package")
def shared_kernel() -> Iterator[Kernel]:
    with running_kernel() as kernel:
        kernel.ok("%load_ext nbddp")
        kernel.ok("%ddp start -n 2")
        yield kernel


@pytest.fixture
def kernel(shared_kernel: Kernel) -> Iterator[Kernel]:
    """Afterwards the next cell must work and get only its own output."""
    yield shared_kernel
    after = shared_kernel.run("%%ddp\nprint('healthy')")
    assert (after.status, after.text) == ("ok", "[0-1] healthy\n"), after
