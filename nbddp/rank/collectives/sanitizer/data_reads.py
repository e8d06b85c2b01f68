"""Notes which samples the data loaders of this rank read; the notebook compares all ranks.

Runs in: the rank process, main thread. No collective is called, and no sample is read twice.
"""

import hashlib
import operator
import time
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils.data as torch_data
from torch.optim.optimizer import register_optimizer_step_pre_hook

from nbddp.rank import torch_private
from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.rank.collectives.sanitizer.dataset_contents import contents_of
from nbddp.rank.collectives.sanitizer.trained_shapes import (
    Combined,
    TrainedModels,
    TrainedShapes,
    combines,
    is_of_library,
)
from nbddp.wire.flight_recorder import LoaderReads, ReadEpoch, SamplerFacts, Site, shortened

#: Size of the sets of indices that a cell reports; later passes have none.
_INDEX_BYTES = 1 << 20
_MAX_LOADERS = 32
_MAX_EPOCHS = 1000
#: Operations that are looked at, the newest first.
_MAX_OPERATIONS = 1024


@dataclass
class _Epoch:
    """A pass over a loader."""

    site: Site
    number: int
    steps: int  #: backward passes and steps of optimizers before it
    indices: bytearray | None
    base_indices: bytearray | None
    base: Any  #: the indices of a `Subset`
    asked: deque[Any] = field(default_factory=deque)  #: indices of batches not got yet
    order: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=8))
    batches: int = 0
    samples: int = 0
    is_complete: bool = False
    is_known: bool = True  #: all indices are numbers
    trains: bool = False
    joins: bool = False
    combines: bool = False  #: see `ReadEpoch`
    epochs_set: int = 0
    is_beside: bool = False
    models: set[int] = field(default_factory=set)  #: see `ReadEpoch`
    seen: int = 0  #: the newest operation that was looked at
    combined: Combined = field(default_factory=Combined)
    groups: frozenset[str] = frozenset()  #: those that combined what it trained


@dataclass
class _Loader:
    """A loader, and its passes in this cell."""

    loader: Any
    length: int
    sampler: Any  #: that of the loader, or the `DistributedSampler` in it
    base: Any  #: the indices of a `Subset`
    epochs: list[_Epoch] = field(default_factory=list)


class DataReads:
    """The data loaders that are read in a cell.

    Args:
        recorder: knows the operations and the lines of the user's code.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._sites = recorder.sites
        #: Returns the hash of a tensor. Set by the server.
        self.hash_of: Callable[[torch.Tensor], bytes] | None = None
        self.spent_ns = 0
        self._steps = 0  #: backward passes and steps of optimizers in this cell
        self._made_at: weakref.WeakKeyDictionary[Any, Site] = weakref.WeakKeyDictionary()
        self._loaders: dict[int, _Loader] = {}
        self._epoch_of: weakref.WeakKeyDictionary[Any, _Epoch] = weakref.WeakKeyDictionary()
        self._beginning: list[_Epoch | None] = []
        self._latest: _Epoch | None = None  #: the pass that did something last
        self._begun: _Epoch | None = None  #: the pass that has begun last
        self._models = TrainedModels()
        self._left_bytes = 0
        self._trained = TrainedShapes()
        self._epochs_set: dict[int, int] = {}  #: calls of `set_epoch`, by identity of the sampler
        self._first = 0  #: the newest operation when the cell began
        self._undo: list[Callable[[], None]] = []

    @property
    def is_on(self) -> bool:
        """Whether this cell is watched."""
        return bool(self._undo)

    def begin(self) -> None:
        """Begin a cell that is watched."""
        self.spent_ns = self._steps = 0
        self._left_bytes = _INDEX_BYTES
        self._beginning, self._latest, self._begun = [], None, None
        self._models = TrainedModels()
        self._trained = TrainedShapes()
        self._epochs_set.clear()
        self._first = self._recorder.writer.newest
        hook = register_optimizer_step_pre_hook(self._stepped)
        self._undo = [hook.remove, torch_private.hook_loaders(self)]

    def end(self) -> tuple[LoaderReads, ...]:
        """End the cell; returns what its loaders have read."""
        for undo in self._undo:
            undo()
        self._undo = []
        self._follow(None)  # the steps of a loop that was left came after its last batch
        loaders, self._loaders = self._loaders, {}
        self._epoch_of.clear()
        self._begun = None
        self._note_averages(loaders.values())
        reports = tuple(self._report(each) for each in loaders.values() if each.epochs)
        self._made_at.clear()
        return reports

    def note_step(self) -> None:
        """Note a backward pass, or a step of an optimizer: the loop around it trains."""
        self._steps += 1

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        self.note_step()
        self._trained.note(optimizer)
        if self._latest is not None and (model := self._models.number(optimizer)):
            self._latest.models.add(model)

    # --- the observer ----------------------------------------------------------------------------

    def made(self, source: Any, frame: types.FrameType) -> None:
        """Note the line that makes a loader or a sampler."""
        self._epochs_set.pop(id(source), None)  # another one had this identity
        with suppress(TypeError):  # the user's class has no hash
            self._made_at[source] = self._sites.site_of(self._sites.user_frame(frame))

    def sets_epoch(self, sampler: Any) -> None:
        """Note a call of `set_epoch`."""
        self._epochs_set[id(sampler)] = self._epochs_set.get(id(sampler), 0) + 1

    def begins(self, loader: Any, frame: types.FrameType) -> None:
        """Begin a pass over a loader."""
        began = time.monotonic_ns()
        self._follow(None)
        epoch = None
        known = self._loaders.get(id(loader))
        if known is None and len(self._loaders) < _MAX_LOADERS:
            sampler = _sampler_of(loader)
            known = _Loader(loader, _length(loader.dataset), sampler, _base_of(loader.dataset))
            self._loaders[id(loader)] = known
        if known is not None and len(known.epochs) < _MAX_EPOCHS:
            site = self._sites.site_of(self._sites.user_frame(frame))
            number = getattr(known.sampler, "epoch", -1)
            epoch = _Epoch(
                site,
                number if isinstance(number, int) else -1,
                self._steps,
                self._bits(known.length),
                self._bits(_length(known.loader.dataset.dataset)) if known.base else None,
                known.base,
                epochs_set=self._calls_of_set_epoch(known.sampler),
                is_beside=self._is_beside(known, site),
            )
            self._begun = epoch
            known.epochs.append(epoch)
        self._beginning.append(epoch)
        self.spent_ns += time.monotonic_ns() - began

    def _is_beside(self, known: _Loader, site: Site) -> bool:
        """Whether a pass begins before the one before it has a batch, as in ``zip``."""
        last = self._begun
        is_of_loop = last is not None and last.site.position == site.position and not last.batches
        return is_of_loop or (bool(known.epochs) and not known.epochs[-1].batches)

    def _calls_of_set_epoch(self, sampler: Any) -> int:
        set_epoch = getattr(type(sampler), "set_epoch", None)
        is_known = set_epoch is torch_data.DistributedSampler.set_epoch
        return self._epochs_set.get(id(sampler), 0) if is_known else -1

    def begun(self, loader: Any, iterator: Any) -> None:
        """Note the iterator of the pass that begins."""
        del loader
        epoch = self._beginning.pop()
        if iterator is None:
            return
        if epoch is None:
            self._epoch_of.pop(iterator, None)
        else:
            self._epoch_of[iterator] = epoch

    def asked(self, iterator: Any, indices: Any) -> None:
        """Note the indices of a batch that the code will get."""
        # An iterator with workers asks before the loop has it, and again for the next pass.
        epoch = self._beginning[-1] if self._beginning else self._epoch_of.get(iterator)
        if epoch is not None:
            epoch.asked.append(indices)

    def got(self, iterator: Any) -> None:
        """Note that the code has got a batch."""
        epoch = self._epoch_of.get(iterator)
        if epoch is None:
            return
        began = time.monotonic_ns()
        self._follow(epoch)
        if not epoch.batches:
            epoch.seen = self._recorder.writer.newest
        epoch.batches += 1
        indices = _numbers(epoch.asked.popleft()) if epoch.asked else None
        if indices is None:
            epoch.is_known = False
        else:
            self._note_indices(epoch, indices)
        self.spent_ns += time.monotonic_ns() - began

    def ended(self, iterator: Any) -> None:
        """Note that the data are at their end."""
        epoch = self._epoch_of.get(iterator)
        if epoch is not None:
            self._follow(epoch)
            self._latest = None
            epoch.is_complete = True
            epoch.joins = torch_private.is_joining()

    # --- facts -----------------------------------------------------------------------------------

    def _follow(self, epoch: _Epoch | None) -> None:
        """Note what came between the batches of a pass, and after its last one."""
        for open_epoch in (self._latest, epoch):
            if open_epoch is not None:
                open_epoch.trains = open_epoch.trains or self._steps > open_epoch.steps
                if open_epoch.batches and not open_epoch.groups:
                    self._look(open_epoch)
        self._latest = epoch

    def _look(self, epoch: _Epoch) -> None:
        """Note whether operations since the last look have brought values of ranks together."""
        newest = self._recorder.writer.newest
        if newest == epoch.seen:
            return
        last = range(newest, max(epoch.seen, newest - _MAX_OPERATIONS), -1)
        operations = list(map(self._recorder.operation, last))
        epoch.combines = epoch.combines or any(map(combines, operations))
        epoch.combined.note(filter(None, operations), are_of_a_batch=True)
        epoch.groups = self._trained.groups_in(epoch.combined)
        epoch.seen = newest

    def _note_averages(self, loaders: Iterable[_Loader]) -> None:
        """Note that the code has averaged outside of loops what it trained in them."""
        alone = [each for one in loaders for each in one.epochs if each.trains and not each.groups]
        if alone:
            operations = self._recorder.operations(_MAX_OPERATIONS)
            averaged = Combined()
            averaged.note(
                (
                    each
                    for each in operations
                    if each.record_id > self._first and not is_of_library(each)
                ),
                are_of_a_batch=False,
            )
            groups = self._trained.groups_in(averaged)
            for epoch in alone:
                epoch.groups = groups

    def _note_indices(self, epoch: _Epoch, indices: list[int]) -> None:
        epoch.samples += len(indices)
        epoch.order.update(repr(indices).encode())
        _set(epoch.indices, indices)
        if epoch.base_indices is not None:
            base = epoch.base
            _set(epoch.base_indices, [base[index] for index in indices if index < len(base)])

    def _bits(self, length: int) -> bytearray | None:
        """Room for a bit of each sample, while there is room in the report."""
        size = (length + 7) // 8
        if length < 0 or size > self._left_bytes:
            return None
        self._left_bytes -= size
        return bytearray(size)

    def _report(self, known: _Loader) -> LoaderReads:
        began = time.monotonic_ns()
        loader, dataset = known.loader, known.loader.dataset
        is_iterable = isinstance(dataset, torch_data.IterableDataset)
        report = LoaderReads(
            site=self._site_of(loader),
            dataset=shortened(type(dataset).__name__),
            length=known.length,
            is_iterable=is_iterable,
            contents=b"" if is_iterable else self._contents(dataset),
            sampler=self._sampler(known),
            batch_size=_batch_size(loader),
            drop_last=bool(getattr(loader, "drop_last", False)),
            base_contents=self._contents(dataset.dataset) if known.base else b"",
            base_length=_length(dataset.dataset) if known.base else 0,
            base_dataset=shortened(type(dataset.dataset).__name__) if known.base else "",
            epochs=tuple(map(self._epoch, known.epochs)),
        )
        self.spent_ns += time.monotonic_ns() - began
        return report

    def _epoch(self, epoch: _Epoch) -> ReadEpoch:
        is_known = epoch.is_known and bool(epoch.samples)
        known_groups = self._recorder.counters_by_group
        members = [known_groups[each].info.spans for each in epoch.groups if each in known_groups]
        return ReadEpoch(
            site=epoch.site,
            batches=epoch.batches,
            samples=epoch.samples if is_known else 0,
            is_complete=epoch.is_complete,
            order=epoch.order.digest() if is_known else b"",
            number=epoch.number,
            trains=epoch.trains,
            joins=epoch.joins,
            indices=bytes(epoch.indices or b"") if is_known else b"",
            base_indices=bytes(epoch.base_indices or b"") if is_known else b"",
            combines=epoch.combines,
            groups=tuple(sorted(members, key=repr)),
            has_ddp=epoch.combined.has_ddp,
            epochs_set=epoch.epochs_set,
            is_beside=epoch.is_beside,
            models=tuple(sorted(epoch.models)),
        )

    def _site_of(self, source: Any) -> Site:
        """The line that made a loader or a sampler in this cell."""
        try:
            return self._made_at.get(source, Site())
        except TypeError:
            return Site()

    def _contents(self, dataset: Any) -> bytes:
        try:
            return b"" if self.hash_of is None else contents_of(dataset, self.hash_of)
        except Exception:  # noqa: BLE001 - attributes of the user's classes may raise anything
            return b""

    def _sampler(self, known: _Loader) -> SamplerFacts:
        sampler = known.sampler
        kind = type(sampler)
        facts = SamplerFacts(
            name=shortened(kind.__name__),
            is_torch=kind.__module__.startswith("torch."),
            draws_again=bool(getattr(sampler, "replacement", False))
            or isinstance(sampler, torch_data.SubsetRandomSampler),
            site=self._site_of(sampler),
        )
        if not isinstance(sampler, torch_data.DistributedSampler):
            return facts
        return SamplerFacts(
            name=facts.name,
            is_torch=facts.is_torch,
            site=facts.site,
            is_distributed=True,
            replicas=int(sampler.num_replicas),
            rank=int(sampler.rank),
            seed=int(sampler.seed),
            shuffle=bool(sampler.shuffle),
            drop_last=bool(sampler.drop_last),
        )


def _sampler_of(loader: Any) -> Any:
    """The sampler of a loader; rather a `DistributedSampler` that its batch sampler uses."""
    batches = getattr(loader, "batch_sampler", None)
    inside: Iterable[Any] = getattr(batches, "__dict__", {}).values()
    candidates = [getattr(loader, "sampler", None), *inside, batches]
    distributed = (one for one in candidates if isinstance(one, torch_data.DistributedSampler))
    own = batches if type(batches) is not torch_data.BatchSampler else None
    inner = getattr(batches, "sampler", None)
    return next(distributed, own if own is not None else inner or getattr(loader, "sampler", None))


def _base_of(dataset: Any) -> Any:
    """The indices of a `Subset`; None: it is none, or its indices are no numbers."""
    if type(dataset) is not torch_data.Subset or _length(dataset.dataset) < 0:
        return None
    return _numbers(dataset.indices) or None


def _length(dataset: Any) -> int:
    if isinstance(dataset, torch_data.IterableDataset):
        return -1
    try:
        return len(dataset)
    except Exception:  # noqa: BLE001 - a dataset need not have a length
        return -1


def _batch_size(loader: Any) -> int:
    size = getattr(loader, "batch_size", None)
    return size if isinstance(size, int) else 0


def _numbers(indices: Any) -> list[int] | None:
    """The indices of a batch, or one index; None: they are no numbers."""
    if isinstance(indices, torch.Tensor) or type(indices).__module__ == "numpy":
        indices = indices.tolist()
    try:
        if isinstance(indices, str | bytes):
            return None
        if isinstance(indices, Iterable):
            return [operator.index(each) for each in indices]
        return [operator.index(indices)]
    except TypeError:
        return None


def _set(bits: bytearray | None, indices: list[int]) -> None:
    if bits is None:
        return
    for index in indices:
        if 0 <= index < 8 * len(bits):
            bits[index >> 3] |= 1 << (index & 7)
