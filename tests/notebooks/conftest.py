"""A real kernel with a pool, shared by the tests that leave it as they found it."""

import contextlib
import tempfile
import uuid
from collections.abc import Iterator
from typing import Any

import jupyter_client
import pytest
from jupyter_client.manager import AsyncKernelManager

from tests.support.kernel import Kernel, running_kernel


class SocketKernelManager(AsyncKernelManager):
    """Starts kernels on sockets that are files.

    TCP ports are chosen before a kernel takes them: another test may have taken one by then.
    """

    def __init__(self, **options: Any) -> None:
        ip = f"{tempfile.gettempdir()}/nbk-{uuid.uuid4().hex}"
        super().__init__(**{"transport": "ipc", "ip": ip, **options})


@pytest.fixture(scope="package", autouse=True)
def kernels_without_ports() -> Iterator[None]:
    """nbclient and papermill start kernels without ports, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jupyter_client, "AsyncKernelManager", SocketKernelManager)
        yield


class SharedKernel:
    """One kernel for all, until a test leaves it in a state that would fail the next one."""

    def __init__(self, ranks: int = 2) -> None:
        self._ranks = ranks
        self._stack = contextlib.ExitStack()
        self._kernel: Kernel | None = None

    def get(self) -> Kernel:
        if self._kernel is None:
            self._kernel = self._stack.enter_context(running_kernel())
            self._kernel.ok("%load_ext nbddp")
            self._kernel.ok(f"%ddp start -n {self._ranks}")
        return self._kernel

    def check_health(self) -> None:
        """Fails, and drops the kernel, if all ranks cannot run the next cell together."""
        try:
            after = self.get().run("%%ddp\ndist.barrier(); print('healthy')")
            healthy = f"[0-{self._ranks - 1}] healthy\n"
            assert (after.status, after.text) == ("ok", healthy), after
        except BaseException:
            self.close()
            raise

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
    yield kernels.get()
    kernels.check_health()


@pytest.fixture
def kernel(shared_kernel: Kernel) -> Kernel:
    return shared_kernel
