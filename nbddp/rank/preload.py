"""What the fork server loads before the first rank is forked.

Runs in: the fork server, once; in a spawned rank, at its start. It must leave one thread, no
parallel region and no CUDA behind, or ranks forked from it would hang (see docs/decisions/).
"""

import gc
import importlib
import os
import weakref

from nbddp.settings import AGENT_PID_ENV, PRELOAD_ENV
from nbddp.system import process_tree

#: The fork server's process id, which is the parent of every forked rank.
FORK_SERVER_PID = os.getpid()

#: What each rank would load otherwise: in here once, there in every rank.
_MODULES = (
    "torch",
    "torch.distributed",
    "IPython.core.application",  # this and the next: by the making of a shell
    "IPython.core.completer",
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.logger",
    "IPython.core.magics",
    "IPython.core.oinspect",
    "IPython.display",
    "stack_data",  # this and the next: by the first traceback
    "pygments.formatters.html",
    "pygments.formatters.terminal256",
    "pygments.lexers.python",
    "multiprocessing.popen_forkserver",
    "nbddp.rank.server",
)

# First: an agent that is killed while torch loads takes its fork server with it.
if AGENT_PID_ENV in os.environ:
    process_tree.die_with_parent(int(os.environ[AGENT_PID_ENV]))

# Nothing of this is ever garbage. Without collections it loads faster; frozen, it is not looked at
# by those of the ranks, each of which would copy every page that it looks at.
gc.disable()
for _name in _MODULES:
    importlib.import_module(_name)
for _name in filter(None, os.environ.get(PRELOAD_ENV, "").split(",")):
    try:
        importlib.import_module(_name.strip())
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything
        # Into the agent's log. The cell that imports it shows the error where it belongs.
        print(f"{PRELOAD_ENV}: {_name}: {type(error).__name__}: {error}", flush=True)  # noqa: T201
# Marks every function of nbddp: in each rank that would copy 5 MB of pages.
importlib.import_module("nbddp.rank.torch_private").hide_from_compiler("nbddp.")
gc.freeze()
gc.enable()
# Nor is any of it a rank's to clean up: torch alone takes 134 libraries of operators apart, 22 ms.
for _finalizer in list(getattr(weakref.finalize, "_registry", ())):
    _finalizer.atexit = False

importlib.import_module("torch").set_num_threads(1)
