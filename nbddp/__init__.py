"""nbddp: run a ``torch.distributed`` job from a notebook.

In a notebook: ``%load_ext nbddp``, ``%ddp start -n 4``, then ``%%ddp`` cells. In a script:

    >>> import nbddp
    >>> with nbddp.start(2) as pool:
    ...     outcome = pool.run("print('one of', dist.get_world_size())")
    [0-1] one of 2

Importing this package loads neither torch nor IPython nor ZeroMQ.

Runs in: every process.
"""

from typing import TYPE_CHECKING, Any

from nbddp.errors import CellError, NbddpError, RankExitedError

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nbddp import faults as faults
    from nbddp.controller.pool import Pool
    from nbddp.notebook.attachment import attach
    from nbddp.notebook.session import last_report, pool, start

__version__ = "0.1.0.dev0"
__all__ = [
    "CellError",
    "NbddpError",
    "Pool",
    "RankExitedError",
    "attach",
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
    "attach": "nbddp.notebook.attachment",
    "last_report": "nbddp.notebook.session",
    "pool": "nbddp.notebook.session",
    "start": "nbddp.notebook.session",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "faults":
        return importlib.import_module("nbddp.faults")
    if name not in _HOMES:
        raise AttributeError(f"module 'nbddp' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def show(*tensors: Any, title: str | None = None) -> Any:
    """Draw a tensor of every rank side by side, in a cell that runs on the ranks.

    Used in a ``with``, it draws the tensor before and after the block. Sharded tensors are drawn in
    their place in the whole. A few numbers leave the rank, never the tensor. A notebook shows a
    picture; a terminal shows the numbers.

    Args:
        tensors: of any shape, dtype and device; each is drawn below the one before. A list or
            tuple of tensors is drawn one tensor after the other.
        title: a line above them.

    Returns:
        A context manager, which draws the same tensors again at the end of its block.

    Raises:
        BadOptionError: there is no argument, a value is neither a tensor nor a list of tensors, or
            this process is the notebook's and no rank.

    Example:
        >>> outcome = pool.run('''
        ... grad = torch.tensor([1.0, 2.0]) * (rank + 1)
        ... with nbddp.show(grad):
        ...     dist.all_reduce(grad)
        ... ''')
        grad  float32 (2,)
        before
        rank 0   rank 1
        1 2      2 4
        after | equal on all ranks
        rank 0   rank 1
        3 6      3 6
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
    """Give all ranks of a group the state that one of them has, in a cell on all ranks.

    For use after a rank was replaced by a fresh process: ``nbddp.sync(model, optimizer)``. Every
    rank of the group has to call it, with the same objects in the same order.

    Args:
        objects: tensors (of any shape; shape and dtype are equal on all ranks), or objects with
            ``state_dict()`` and ``load_state_dict()``, such as modules, optimizers and schedulers.
            They are changed in place. ``DistributedDataParallel`` modules also get new buckets of
            gradients, since a module that has stepped sorts them in another order than a new one.
        src: global rank that has the state; default: the lowest of the ranks that have lived
            longest.
        group: process group; default: all ranks.

    Raises:
        NbddpError: this process is no rank.
        BadOptionError: there is no object, an object has no state or is sharded (no rank has all of
            it), or ``src`` is no member of the group.

    Example:
        >>> outcome = pool.run("x = torch.ones(2) * rank; nbddp.sync(x, src=1); x")
        [0-1] Out: tensor([1., 1.])
    """
    from nbddp.settings import is_rank

    if not is_rank():
        raise NbddpError("nbddp.sync works on ranks. Next: call it in a %%ddp cell, on every rank")
    from nbddp.rank.collectives import state_sync

    state_sync.sync(*objects, src=src, group=group)


def load_ipython_extension(shell: "InteractiveShell") -> None:
    """Register ``%ddp``, ``%%ddp`` and ``%%local``; IPython calls it for ``%load_ext nbddp``.

    Args:
        shell: gets the magics.

    Example:
        >>> nbddp.load_ipython_extension(get_ipython())
        >>> get_ipython().run_line_magic("ddp", "start -n 2")
        already running: 2 ranks on cpu, process group gloo
    """
    from nbddp.notebook import extension

    extension.load(shell)


def unload_ipython_extension(shell: "InteractiveShell") -> None:
    """Remove the magics and stop the pool; IPython calls it for ``%unload_ext nbddp``.

    Within a cell the pool is stopped when the cell has ended, and only if the cell has not loaded
    nbddp again: ``%reload_ext nbddp`` keeps the pool.

    Args:
        shell: has the magics.

    Example:
        >>> pool.stop()
        >>> nbddp.load_ipython_extension(get_ipython())
        >>> nbddp.unload_ipython_extension(get_ipython())
    """
    from nbddp.notebook import extension

    extension.unload(shell)
