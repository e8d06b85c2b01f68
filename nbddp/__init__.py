"""nbddp: run a ``torch.distributed`` job from a notebook.

In a notebook: ``%load_ext nbddp``, ``%ddp start -n 4``, then ``%%ddp`` cells. In a script::

    import nbddp

    with nbddp.start(2) as pool:
        pool.run("print(rank, dist.get_world_size())")

Importing this package loads neither torch nor IPython nor ZeroMQ.
"""

from typing import TYPE_CHECKING, Any

from nbddp.errors import CellError, NbddpError, RankExitedError

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nbddp.controller.pool.pool import Pool
    from nbddp.notebook.session import last_report, pool, start

__version__ = "0.1.0.dev0"
__all__ = [
    "CellError",
    "NbddpError",
    "Pool",
    "RankExitedError",
    "last_report",
    "load_ipython_extension",
    "pool",
    "show",
    "start",
    "sync",
    "unload_ipython_extension",
]

_HOMES = {
    "Pool": "nbddp.controller.pool.pool",
    "last_report": "nbddp.notebook.session",
    "pool": "nbddp.notebook.session",
    "start": "nbddp.notebook.session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nbddp' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def show(*tensors: Any, title: str | None = None) -> Any:
    """Draw a tensor of every rank side by side: ``nbddp.show(grad)`` in a cell.

    ``with nbddp.show(grad): dist.all_reduce(grad)`` draws it before and after the block. Sharded
    tensors are drawn in their place in the whole. A few numbers leave the rank, never the tensor.

    Args:
        tensors: of any shape, dtype and device; each is drawn below the one before.
        title: above them.

    Raises:
        BadOptionError: a value is no tensor.
    """
    import sys

    if "torch" not in sys.modules:  # then it cannot be one, and this may be a notebook's kernel
        from nbddp.errors import BadOptionError

        raise BadOptionError(
            "nbddp.show shows tensors, in a %%ddp cell. "
            "Next: %ddp pull NAME -r 0 gets a value into the notebook"
        )
    from nbddp.rank.values import show as showing

    return showing.show(*tensors, title=title, frame=sys._getframe(1))


def sync(*objects: Any, src: int | None = None, group: Any = None) -> None:
    """Give all ranks the state that one has: ``nbddp.sync(model, optimizer, src=0)`` in a cell.

    For use after a rank was replaced. See `nbddp.rank.collectives.state_sync.sync`.

    Args:
        objects: tensors, or what has ``state_dict()``, such as modules and optimizers.
        src: global rank that has the state; default: the one that has been there longest.
        group: process group; default: all ranks.

    Raises:
        NbddpError: this process is no rank.
        BadOptionError: see there.
    """
    import os

    from nbddp.settings import RANK_MARK_ENV

    if RANK_MARK_ENV not in os.environ:
        raise NbddpError("nbddp.sync works on ranks. Next: call it in a %%ddp cell, on every rank")
    from nbddp.rank.collectives import state_sync

    state_sync.sync(*objects, src=src, group=group)


def load_ipython_extension(shell: "InteractiveShell") -> None:
    """``%load_ext nbddp``: register ``%ddp``, ``%%ddp`` and ``%%local``."""
    from nbddp.notebook import extension

    extension.load(shell)


def unload_ipython_extension(shell: "InteractiveShell") -> None:
    """``%unload_ext nbddp``: stop the pool, forget the magics; ``%reload_ext`` keeps the pool."""
    from nbddp.notebook import extension

    extension.unload(shell)
