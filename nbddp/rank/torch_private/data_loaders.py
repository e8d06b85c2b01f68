"""Notes what data loaders read: which indices they ask for, and which batches the code gets.

Runs in: the rank process, main thread.
"""

import functools
import sys
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch.utils.data

from nbddp.rank.torch_private import ddp


class LoaderObserver(Protocol):
    """Notes what loaders do."""

    def made(self, source: Any, frame: types.FrameType) -> None:
        """A loader or sampler is made."""

    def sets_epoch(self, sampler: Any) -> None:
        """The code calls `set_epoch` of a `DistributedSampler`."""

    def begins(self, loader: Any, frame: types.FrameType) -> None:
        """A loop over a loader begins."""

    def begun(self, loader: Any, iterator: Any) -> None:
        """The loop has its iterator."""

    def asked(self, iterator: Any, indices: Any) -> None:
        """The indices of the next batch are known. Workers are ahead of the loop."""

    def got(self, iterator: Any) -> None:
        """The loop gets a batch."""

    def ended(self, iterator: Any) -> None:
        """The loop has come to the end of the data."""


def hook_loaders(observer: LoaderObserver) -> Callable[[], None]:
    """Let an observer see all data loaders, until the function that is returned is called.

    A version of torch without these names is not observed.
    """
    loader_type: Any = torch.utils.data.DataLoader
    sampler_type: Any = torch.utils.data.DistributedSampler
    iterator_type: Any = getattr(torch.utils.data.dataloader, "_BaseDataLoaderIter", None)
    if not hasattr(iterator_type, "_next_index"):
        return lambda: None
    make, make_sampler, set_number = (
        loader_type.__init__,
        sampler_type.__init__,
        sampler_type.set_epoch,
    )
    iterate, ask, take = loader_type.__iter__, iterator_type._next_index, iterator_type.__next__

    @functools.wraps(make)
    def new_loader(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        observer.made(self, sys._getframe(1))

    @functools.wraps(make_sampler)
    def new_sampler(self: Any, *args: Any, **kwargs: Any) -> None:
        make_sampler(self, *args, **kwargs)
        observer.made(self, sys._getframe(1))

    @functools.wraps(set_number)
    def set_epoch(self: Any, *args: Any, **kwargs: Any) -> None:
        observer.sets_epoch(self)
        set_number(self, *args, **kwargs)

    @functools.wraps(iterate)
    def begin(self: Any) -> Any:
        observer.begins(self, sys._getframe(1))
        iterator = None
        try:
            iterator = iterate(self)
        finally:
            observer.begun(self, iterator)
        return iterator

    @functools.wraps(ask)
    def next_index(self: Any) -> Any:
        indices = ask(self)
        observer.asked(self, indices)
        return indices

    @functools.wraps(take)
    def next_batch(self: Any) -> Any:
        try:
            batch = take(self)
        except StopIteration:
            observer.ended(self)
            raise
        observer.got(self)
        return batch

    hooks = (
        (loader_type, "__init__", make, new_loader),
        (sampler_type, "__init__", make_sampler, new_sampler),
        (sampler_type, "set_epoch", set_number, set_epoch),
        (loader_type, "__iter__", iterate, begin),
        (iterator_type, "_next_index", ask, next_index),
        (iterator_type, "__next__", take, next_batch),
    )
    for owner, name, _, hook in hooks:
        setattr(owner, name, hook)

    def unhook() -> None:
        for owner, name, original, hook in hooks:
            if getattr(owner, name) is hook:
                setattr(owner, name, original)

    return unhook


def hook_base_seeds(around: Callable[[], AbstractContextManager[None]]) -> Callable[[], None]:
    """Enter a context where a loader draws its *base seed*, until the returned function is called.

    A loop over a loader draws this number even where nothing is shuffled. Only workers use it, so
    loops with workers are left out. In a version of torch without this name nothing is entered.
    """
    iterator_type: Any = getattr(torch.utils.data.dataloader, "_BaseDataLoaderIter", None)
    if iterator_type is None:
        return lambda: None
    make = iterator_type.__init__

    @functools.wraps(make)
    def new_iterator(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        with nullcontext() if loader.num_workers else around():
            make(self, loader, *args, **kwargs)

    iterator_type.__init__ = new_iterator

    def unhook() -> None:
        if iterator_type.__init__ is new_iterator:
            iterator_type.__init__ = make

    return unhook


def is_joining() -> bool:
    """Return whether the code is inside ``with model.join()``, or ``Join`` with a DDP model."""
    configs = (getattr(model, "_join_config", None) for model in ddp.ddp_models())
    return any(getattr(config, "enable", False) for config in configs)
