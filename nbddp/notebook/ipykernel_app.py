"""The kernel "Python (nbddp, N ranks)": every cell runs on the ranks.

Runs in: the notebook's process, which is this kernel: ``python -m nbddp.notebook.ipykernel_app``.
It is ipykernel with nbddp loaded, auto mode on and a pool that starts at once; ipykernel handles
everything else (``%%local``, restart, shutdown, comms, history).
"""

import asyncio
from typing import Any

from ipykernel.compiler import get_tmp_directory
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from traitlets import Unicode

import nbddp
from nbddp.notebook import session
from nbddp.notebook.magics import auto_mode, debug_verbs
from nbddp.notebook.magics.verbs import VERBS


class NbddpKernel(IPythonKernel):
    """An IPython kernel whose cells are distributed."""

    implementation = "nbddp"
    implementation_version = nbddp.__version__

    pool = Unicode("", help="Options of `%ddp start`, such as `-n 4`.").tag(config=True)

    @property
    def banner(self) -> str:  # type: ignore[override]  # a property of ipykernel, too
        """The first lines of a console."""
        size = self._world_size
        return (
            f"nbddp {nbddp.__version__}: cells run on {size} {'rank' if size == 1 else 'ranks'}, "
            "those that begin with %%local here. %ddp help lists the commands.\n"
        )

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        assert self.shell is not None  # noqa: S101 - ipykernel has made it just now
        arguments = vars(VERBS["start"].parser.read(self.pool))
        self._world_size = session.start_soon(arguments).world_size
        #: Serves the requests of the front end's debugger.
        self.debug_forwarder = debug_verbs.DebugForwarder(
            self._publish_debug_event, get_tmp_directory()
        )
        nbddp.load_ipython_extension(self.shell)
        auto_mode.current(self.shell).options = ""

    async def do_debug_request(self, msg: dict[str, Any]) -> dict[str, Any]:
        """Forward a request of the front end's debugger to a rank; see ``%ddp debugger``."""
        if msg.get("command") == "debugInfo" and not self.debug_forwarder.is_on:
            # Answered at once: a front end that waits for the pool would lose the user's clicks.
            info: dict[str, Any] = await super().do_debug_request(msg)
            return info
        return await asyncio.to_thread(self.debug_forwarder.ask, msg)


if __name__ == "__main__":
    IPKernelApp.launch_instance(kernel_class=NbddpKernel)
