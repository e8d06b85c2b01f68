"""Hashes of replicas after each step of an optimizer; the notebook compares them.

Runs in: the rank process, main thread. No collective is called. Replicas are DDP models, and the
parameters of an optimizer if all their gradients were reduced in one group before its step.
"""

import sys
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from nbddp.rank import torch_private
from nbddp.rank.collectives.recording.call_sites import Sites
from nbddp.rank.collectives.sanitizer import finite
from nbddp.rank.torch_private import dispatch_watch
from nbddp.wire.flight_recorder import DIGEST_BYTES, ReplicaSteps, Site, shortened

if TYPE_CHECKING:
    from collections.abc import Callable

#: Size of the hashes of single tensors that are kept for each model.
_DETAIL_BYTES = 1 << 18
#: Steps of a cell that are compared.
_MAX_STEPS = 100_000
_MAX_SITES = 255
#: Changes of the settings of an optimizer; a schedule makes one in each step.
_MAX_SETTINGS = 64
#: Tensors of reductions that are noted between two steps.
_MAX_REDUCED = 100_000
#: Numbers of replicas that are no DDP models; those of DDP models count from 0.
_FIRST_PLAIN = 1_000_000


@dataclass(frozen=True)
class _Model:
    """What is equal on all ranks of a group, or is to be."""

    module: torch.nn.Module | None  #: None: the parameters of an optimizer are those of no module
    pg_id: str
    number: int  #: the same on all ranks
    ignored: Container[str] = ()  #: names of parameters and buffers that each rank has for itself

    @property
    def name(self) -> str:
        """The class of the module."""
        return "a model" if self.module is None else type(self.module).__name__


@dataclass
class _Steps:
    """A replica, and the optimizer that steps it."""

    model: _Model
    optimizer: Any
    number: int  #: of the optimizer among those that have stepped the model in this cell
    tensors: Mapping[str, torch.Tensor]
    digests: bytearray = field(default_factory=bytearray)
    details: bytearray = field(default_factory=bytearray)
    newest: bytes = b""  #: of each tensor
    sites: list[Site] = field(default_factory=list)
    site_of_step: bytearray = field(default_factory=bytearray)
    buffers: dict[str, bytes] = field(default_factory=dict)  #: digests at the first step
    settings: list[tuple[int, str]] = field(default_factory=list)  #: by the step that began with it


class Replicas:
    """The DDP models that step in a cell.

    Args:
        sites: finds the lines of the user's code.
    """

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        #: Returns the hash of a tensor. Set by the server.
        self.hash_of: Callable[[torch.Tensor], bytes] | None = None
        self._steps: dict[tuple[int, int], _Steps] = {}  # by DDP model, 0 for none, and optimizer
        #: Memory that a group has added up since the last step, by its identity. A weak reference
        #: keeps that number from other memory.
        self._reduced: dict[int, tuple[Any, str]] = {}
        self._hooks: list[Any] = []
        self.spent_ns = 0
        self._running: list[int] = []  #: optimizers that step now: one may call another

    def begin(self) -> None:
        """Begin a cell."""
        self.spent_ns = 0
        self._running = []
        self._reduced = {}
        if self.hash_of is not None:
            self._hooks = [
                register_optimizer_step_pre_hook(self._before),
                register_optimizer_step_post_hook(self._after),
            ]

    def end(self) -> tuple[ReplicaSteps, ...]:
        """End the cell; returns the hashes of its steps."""
        for hook in self._hooks:
            hook.remove()
        steps, self._steps, self._hooks = self._steps, {}, []
        return tuple(self._report(each) for each in steps.values())

    def note_reduced(self, pg_id: str, tensors: Iterable[torch.Tensor]) -> None:
        """Note tensors that a group adds up: they may be the gradients of a replica."""
        for tensor in tensors:
            is_plain = tensor.layout is torch.strided and tensor.device.type != "meta"
            if is_plain and len(self._reduced) < _MAX_REDUCED:
                reference = dispatch_watch.storage_of(tensor)
                self._reduced[reference.cdata] = reference, pg_id

    def _before(self, optimizer: Optimizer, *_: Any) -> None:
        number = id(optimizer)
        if number in self._running:  # its last step has raised
            del self._running[self._running.index(number) :]
        self._running.append(number)
        if len(self._running) == 1:
            self._note(optimizer, is_before=True)

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        if self._running:
            self._running.pop()
        if not self._running:
            self._note(optimizer, is_before=False)
            self._reduced.clear()

    def _note(self, optimizer: Optimizer, *, is_before: bool) -> None:
        """Add the hashes of the models whose parameters an optimizer has.

        Args:
            optimizer: it steps.
            is_before: its step begins: only the first one of the cell counts.
        """
        mine = {id(one): one for group in optimizer.param_groups for one in group["params"]}
        models = list(self._stepped_by(optimizer, mine))
        for key, model, tensors in models:
            if key not in self._steps:
                counters = getattr(model.process_group, "counters", None)
                if counters is None or torch_private.parts_on_purpose(model):
                    continue
                number = torch_private.numbers_of(model).number
                ignored = model.parameters_to_ignore
                self._begin(
                    key,
                    _Model(model.module, counters.info.pg_id, number, ignored),
                    optimizer,
                    tensors,
                )
            elif is_before:
                continue
            self._add(self._steps[key])
        if not models:
            self._note_plain(optimizer, list(mine.values()), is_before=is_before)

    def _stepped_by(
        self, optimizer: Optimizer, mine: Container[int]
    ) -> Iterator[tuple[tuple[int, int], Any, Mapping[str, torch.Tensor]]]:
        """Yield the key, model and parameters of DDP models that an optimizer steps.

        Args:
            optimizer: it steps.
            mine: identities of its parameters.
        """
        for model in torch_private.ddp_models():
            key = id(model), id(optimizer)
            steps = self._steps.get(key)
            if steps is not None:
                yield key, model, steps.tensors
                continue
            tensors = {
                name: parameter
                for name, parameter in model.module.named_parameters()
                if id(parameter) in mine and name not in model.parameters_to_ignore
            }
            if tensors:
                yield key, model, tensors

    def _note_plain(
        self, optimizer: Optimizer, parameters: list[torch.Tensor], *, is_before: bool
    ) -> None:
        """Add the hashes of parameters whose gradients the user's code has reduced."""
        key = 0, id(optimizer)
        if key not in self._steps:
            gradients = [each.grad for each in parameters if each.grad is not None]
            pg_ids = {self._group_of(each) for each in gradients}
            pg_id = pg_ids.pop() if len(pg_ids) == 1 else None
            if not is_before or pg_id is None:
                return
            number = _FIRST_PLAIN + sum(not model for model, _ in self._steps)
            module = finite.module_of(parameters)
            tensors: Mapping[str, torch.Tensor]
            if module is None:
                tensors = {f"parameter {n}": one for n, one in enumerate(parameters)}
            else:
                tensors = dict(module.named_parameters())
            self._begin(key, _Model(module, pg_id, number), optimizer, tensors)
        elif is_before:
            return
        self._add(self._steps[key])

    def _group_of(self, gradient: torch.Tensor) -> str | None:
        """Return the group that has added up a gradient; None: none has, since the last step."""
        if type(gradient) is not torch.Tensor or gradient.layout is not torch.strided:
            return None
        number = dispatch_watch.storage_of(gradient).cdata
        return self._reduced[number][1] if number in self._reduced else None

    def _begin(
        self, key: tuple[int, int], model: _Model, optimizer: Optimizer,
        tensors: Mapping[str, torch.Tensor],
    ) -> None:  # fmt: skip
        own = model.pg_id, model.number
        number = sum((each.model.pg_id, each.model.number) == own for each in self._steps.values())
        self._steps[key] = steps = _Steps(model, optimizer, number, tensors)
        steps.buffers = self._buffers(model)

    def _add(self, steps: _Steps) -> None:
        if len(steps.site_of_step) >= _MAX_STEPS:
            return
        began = time.monotonic_ns()
        parts = [self._digest(tensor) for tensor in steps.tensors.values()]
        steps.newest = b"".join(parts)
        steps.digests += _joined(parts)
        if len(steps.details) + len(steps.newest) <= _DETAIL_BYTES:
            steps.details += steps.newest
        site = self._sites.site_of(self._sites.user_frame(sys._getframe(3)))
        if site not in steps.sites and len(steps.sites) < _MAX_SITES:
            steps.sites.append(site)
        text = _settings(steps.optimizer)
        is_new = not steps.settings or steps.settings[-1][1] != text
        if is_new and len(steps.settings) <= _MAX_SETTINGS:
            is_last = len(steps.settings) == _MAX_SETTINGS  # later ones are not known
            steps.settings.append((len(steps.site_of_step), "" if is_last else text))
        steps.site_of_step.append(steps.sites.index(site) if site in steps.sites else 0)
        self.spent_ns += time.monotonic_ns() - began

    def _buffers(self, model: _Model) -> dict[str, bytes]:
        named = () if model.module is None else model.module.named_buffers()
        return {name: self._digest(each) for name, each in named if name not in model.ignored}

    def _states(self, steps: _Steps) -> dict[str, bytes]:
        """Return the digests of the tensors that an optimizer keeps for each parameter."""
        state = steps.optimizer.state
        return {
            f"{key} of {name}": self._digest(value)
            for name, parameter in steps.tensors.items()
            for key, value in state.get(parameter, {}).items()
            if isinstance(value, torch.Tensor)
        }

    def _digest(self, tensor: torch.Tensor) -> bytes:
        assert self.hash_of is not None  # noqa: S101 - `begin` has looked
        with torch.no_grad(), dispatch_watch.unseen():
            try:
                return self.hash_of(tensor.detach())[:DIGEST_BYTES]
            except (RuntimeError, NotImplementedError):  # it has no plain memory
                return bytes(DIGEST_BYTES)

    def _report(self, steps: _Steps) -> ReplicaSteps:
        # A forward changes statistics of a batch, which each rank has for its own data.
        steady = {
            name: digest
            for name, digest in self._buffers(steps.model).items()
            if steps.buffers.get(name) == digest
        }
        states = self._states(steps)
        return ReplicaSteps(
            pg_id=steps.model.pg_id,
            number=steps.model.number,
            optimizer_number=steps.number,
            model=shortened(steps.model.name),
            optimizer=shortened(type(steps.optimizer).__name__),
            tensors=tuple(map(shortened, steps.tensors)),
            digests=bytes(steps.digests),
            details=bytes(steps.details),
            newest=steps.newest,
            buffers=tuple(map(shortened, steady)),
            buffer_digests=b"".join(steady.values()),
            states=tuple(map(shortened, states)),
            state_digests=b"".join(states.values()),
            settings=tuple(text for _, text in steps.settings),
            setting_steps=tuple(step for step, _ in steps.settings),
            sites=tuple(steps.sites),
            site_of_step=bytes(steps.site_of_step),
        )


def _settings(optimizer: Optimizer) -> str:
    """Return the numbers of the first group of parameters: ``lr=0.1, momentum=0.9``."""
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    numbers = (f"{key}={value}" for key, value in group.items() if type(value) in (int, float))
    return shortened(", ".join(numbers))


def _joined(parts: list[bytes]) -> bytes:
    """One digest of several."""
    value = 0
    for part in parts:
        value = (value * 0x100000001B3 + int.from_bytes(part)) & (1 << 8 * DIGEST_BYTES) - 1
    return value.to_bytes(DIGEST_BYTES)
