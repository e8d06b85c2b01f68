"""Modules that the fork server loads before it forks the first rank.

Runs in: the fork server, once; a spawned rank, at its start. The import must leave one thread, and
neither a parallel region nor CUDA behind, or ranks forked from it would hang (see docs/decisions/).
"""

import gc
import importlib
import os
import weakref

from nbddp.settings import AGENT_PID_ENV, PRELOAD_ENV
from nbddp.system import process_tree

#: The fork server's process id, which is the parent of every forked rank.
FORK_SERVER_PID = os.getpid()

#: Modules that are loaded here once; otherwise each rank would load them.
_MODULES = (
    "torch",
    "torch.distributed",
    "IPython.core.application",  # this and the following are loaded by the creation of a shell
    "IPython.core.completer",
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.logger",
    "IPython.core.magics",
    "IPython.core.oinspect",
    "IPython.display",
    "stack_data",  # this and the following are loaded by the first traceback
    "pygments.formatters.html",
    "pygments.formatters.terminal256",
    "pygments.lexers.python",
    "multiprocessing.popen_forkserver",
    "nbddp.rank.server",
    "nbddp.rank.stack_writer",
)

# This comes first, so that an agent that is killed while torch loads takes its fork server with it.
if AGENT_PID_ENV in os.environ:
    process_tree.die_with_parent(int(os.environ[AGENT_PID_ENV]))

# These modules never become garbage. They load faster without collections. Frozen, they are skipped
# by the collections of ranks, which would copy every page that they visit.
gc.disable()
for _name in _MODULES:
    importlib.import_module(_name)
for _name in filter(None, os.environ.get(PRELOAD_ENV, "").split(",")):
    try:
        importlib.import_module(_name.strip())
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything
        # This goes to the agent's log. A cell that imports the module shows the error to the user.
        print(f"{PRELOAD_ENV}: {_name}: {type(error).__name__}: {error}", flush=True)  # noqa: T201
# This marks every function of nbddp; done in each rank it would copy 5 MB of pages.
importlib.import_module("nbddp.rank.torch_private").hide_from_compiler("nbddp.")
gc.freeze()
gc.enable()
# No rank has to clean these up at its exit: torch alone unloads 134 operator libraries in 22 ms.
for _finalizer in list(getattr(weakref.finalize, "_registry", ())):
    _finalizer.atexit = False

importlib.import_module("torch").set_num_threads(1)
