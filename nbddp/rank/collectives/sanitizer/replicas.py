"""Hashes of replicas after each step of an optimizer; the notebook compares them.

Runs in: the rank process, main thread. No collective is called. Replicas are DDP models, the
parameters of an optimizer if all their gradients were reduced in one group before its step, and
modules with such gradients that no optimizer has stepped: at the first reduction, and at the end of
the cell.
"""

import functools
import sys
import time
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from nbddp.rank import torch_private
from nbddp.rank.collectives.recording.call_sites import Sites
from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.sanitizer import finite
from nbddp.rank.collectives.sanitizer.reduced_gradients import ReducedGradients, Reduction
from nbddp.rank.torch_private import dispatch_watch
from nbddp.wire.flight_recorder import DIGEST_BYTES, Operation, ReplicaSteps, Site, shortened

_Module: Any = torch.nn.Module
_ModuleRef: TypeAlias = "weakref.ref[torch.nn.Module]"

#: Size of the hashes of single tensors that are kept for each model.
_DETAIL_BYTES = 1 << 18
#: Steps of a cell that are compared.
_MAX_STEPS = 100_000
_MAX_SITES = 255
#: Changes of the settings of an optimizer; a schedule makes one in each step.
_MAX_SETTINGS = 64
#: Numbers of replicas that are no DDP models; those of DDP models are numbers of collectives.
_FIRST_PLAIN = 1 << 40
#: The same for those that no optimizer steps, with the number of their reduction.
_FIRST_BY_HAND = 2 << 40
#: The same for DDP models that no optimizer steps.
_FIRST_DDP_BY_HAND = 3 << 40
#: Modules are looked for this many times in a cell: it takes as long as to collect garbage.
_MAX_SOUGHT = 8


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
    unused: Reduction | None = None  #: see `ReducedGradients.unused_of`


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
        self._gradients = ReducedGradients()
        #: By identity: the digests of modules with gradients, when some were reduced first.
        self._digests_before: dict[int, tuple[_ModuleRef, dict[str, bytes]]] = {}
        self._sought: set[tuple[Any, ...]] = set()  #: shapes whose modules were looked for
        #: By identity: modules whose gradients were reduced when they were looked at.
        self._by_hand: dict[int, tuple[_ModuleRef, Reduction, tuple[str, ...]]] = {}
        #: By identity: DDP models whose group has added up gradients, with their digests before.
        self._ddp_before: dict[int, tuple[Any, Reduction, dict[str, bytes]]] = {}
        self._hooks: list[Any] = []
        self.spent_ns = 0
        self._running: list[int] = []  #: optimizers that step now: one may call another

    def begin(self) -> None:
        """Begin a cell."""
        self.spent_ns = 0
        self._running = []
        self._gradients.begin()
        if self.hash_of is not None:
            _Module.zero_grad = self._noted(_Module.zero_grad)
            self._hooks = [
                register_optimizer_step_pre_hook(self._before),
                register_optimizer_step_post_hook(self._after),
            ]

    def end(
        self, operations: Callable[[], Iterable[Operation]], *, has_failed: bool
    ) -> tuple[ReplicaSteps, ...]:
        """End the cell; returns the hashes of its steps.

        Args:
            operations: returns the last operations of this rank.
            has_failed: the cell has not ended well: ranks may have stopped in the middle of an
                update.
        """
        began = time.monotonic_ns()
        if self._hooks:
            _Module.zero_grad = _Module.zero_grad.__wrapped__
        for hook in self._hooks:
            hook.remove()
        try:
            reports = [self._report(each, operations) for each in self._steps.values()]
            if self._hooks and not has_failed:
                reports += self._by_hand_reports(operations)
                reports += self._ddp_reports(operations)
        finally:
            self._hooks = []
            self._forget()
        self.spent_ns += time.monotonic_ns() - began
        return tuple(reports)

    def _forget(self) -> None:
        """Forget the tensors and modules of a cell."""
        self._steps.clear()
        self._gradients.clear()
        self._by_hand.clear()
        self._digests_before.clear()
        self._ddp_before.clear()
        self._sought.clear()

    def _noted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return `Module.zero_grad`, before which gradients are looked at: it may drop them."""

        @functools.wraps(original)
        def run(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._gradients:
                self._look(module)
            return original(module, *args, **kwargs)

        return run

    def _look(self, module: torch.nn.Module) -> None:
        """Note a module if all its gradients were reduced in one group."""
        known = self._by_hand.get(id(module))
        if known is not None and known[0]() is module:
            return
        named = [
            (name, one.grad) for name, one in module.named_parameters() if one.grad is not None
        ]
        gradients = [gradient for _, gradient in named]
        if any(map(finite.is_captured, gradients)):
            return
        reduction = self._gradients.reduction_of(gradients)
        if reduction is not None:
            names = tuple(name for name, _ in named)
            self._by_hand[id(module)] = weakref.ref(module), reduction, names

    def _by_hand_reports(
        self, operations: Callable[[], Iterable[Operation]]
    ) -> Iterator[ReplicaSteps]:
        """Yield the hashes of modules that the code has updated without an optimizer."""
        if self._gradients:
            for root in finite.root_modules():
                self._look(root)
        others = self._stepped_tensors()
        others |= {id(one) for model in torch_private.ddp_models() for one in model.parameters()}
        # The numbers of reductions are equal on all ranks. Neither is the order of modules in
        # memory, nor which of those that nothing uses any more are still there.
        of_reduction: dict[Reduction, list[tuple[torch.nn.Module, tuple[str, ...]]]] = {}
        for reference, reduction, names in self._by_hand.values():
            module = reference()
            before = self._digests_before.get(id(module))
            if module is not None and before is not None and before[0]() is module:
                of_reduction.setdefault(reduction, []).append((module, names))
        for reduction, modules in of_reduction.items():
            if len(modules) > 1:
                continue  # ranks cannot tell them apart
            ((module, names),) = modules
            parts = self._digests_before[id(module)][1]
            tensors = {name: one for name, one in module.named_parameters() if name in names}
            if tensors.keys() <= parts.keys() and others.isdisjoint(map(id, tensors.values())):
                model = _Model(module, reduction.pg_id, _FIRST_BY_HAND + reduction.number)
                site = _site_of(reduction, operations())
                yield self._by_hand_report(model, site, parts, tensors)

    def _ddp_reports(self, operations: Callable[[], Iterable[Operation]]) -> Iterator[ReplicaSteps]:
        """Yield the hashes of DDP models that no optimizer has stepped."""
        stepped = self._stepped_tensors()
        for model in torch_private.ddp_models():
            known = self._ddp_before.get(id(model))
            if known is None or known[0]() is not model:
                continue
            _, reduction, parts = known
            named = model.module.named_parameters()
            tensors = {name: one for name, one in named if name in parts}
            if tensors and stepped.isdisjoint(map(id, tensors.values())):
                number = _FIRST_DDP_BY_HAND + torch_private.numbers_of(model).number
                replica = _Model(model.module, reduction.pg_id, number)
                site = _site_of(reduction, operations())
                yield self._by_hand_report(replica, site, parts, tensors)

    def _stepped_tensors(self) -> set[int]:
        """The identities of parameters that optimizers have stepped."""
        return {id(one) for steps in self._steps.values() for one in steps.tensors.values()}

    def _by_hand_report(
        self, model: _Model, site: Site, parts: Mapping[str, bytes],
        tensors: Mapping[str, torch.Tensor],
    ) -> ReplicaSteps:  # fmt: skip
        """Report a replica that no optimizer has stepped.

        Args:
            model: the replica.
            site: the line that reduces its gradients.
            parts: the digests of its parameters before.
            tensors: its parameters.
        """
        first = [parts[name] for name in tensors]
        last = [self._digest(tensor) for tensor in tensors.values()]
        return ReplicaSteps(
            pg_id=model.pg_id,
            number=model.number,
            optimizer_number=0,
            model=shortened(model.name),
            optimizer="",
            tensors=tuple(map(shortened, tensors)),
            digests=_joined(first) + _joined(last),
            details=b"".join([*first, *last]),
            newest=b"".join(last),
            buffers=(),
            buffer_digests=b"",
            states=(),
            state_digests=b"",
            settings=(),
            setting_steps=(),
            sites=(site,),
            site_of_step=bytes(2),
        )

    def note_reduced(
        self, counters: GroupCounters, tensors: Sequence[torch.Tensor], *, is_of_user: bool
    ) -> None:
        """Note tensors that a group adds up: they may be the gradients of a replica.

        The caller measures the time.

        Args:
            counters: of the group.
            tensors: the tensors.
            is_of_user: the user's code has called it, and not a library such as DDP.
        """
        reduction = Reduction.upcoming(counters)
        self._gradients.note(reduction, tensors)
        if not self._hooks or any(map(finite.is_captured, tensors)):
            return
        if not is_of_user:
            self._note_ddp(counters, reduction)
            return
        self._gradients.note_copies(reduction, tensors, self._digest)
        key = tuple((each.shape, each.dtype) for each in tensors)
        if key not in self._sought and len(self._sought) < _MAX_SOUGHT:
            self._sought.add(key)
            self._note_before()

    def _note_ddp(self, counters: GroupCounters, reduction: Reduction) -> None:
        """Take the digests of DDP models of a group: the code may update them by itself."""
        for model in torch_private.ddp_models():
            known = self._ddp_before.get(id(model))
            is_known = known is not None and known[0]() is model
            is_of_group = getattr(model.process_group, "counters", None) is counters
            if is_known or not is_of_group or torch_private.parts_on_purpose(model):
                continue
            named = model.module.named_parameters()
            ignored = model.parameters_to_ignore
            parts = {name: self._digest(one) for name, one in named if name not in ignored}
            self._ddp_before[id(model)] = weakref.ref(model), reduction, parts

    def _note_before(self) -> None:
        """Take the digests of modules that train: the code may update them without an optimizer."""
        for module in finite.root_modules():
            known = self._digests_before.get(id(module))
            if known is not None and known[0]() is module:
                continue
            if any(one.grad is not None for one in module.parameters()):
                parts = {name: self._digest(one) for name, one in module.named_parameters()}
                self._digests_before[id(module)] = weakref.ref(module), parts

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
            self._gradients.clear()

    def _note(self, optimizer: Optimizer, *, is_before: bool) -> None:
        """Add the hashes of the models whose parameters an optimizer has.

        Args:
            optimizer: it steps.
            is_before: its step begins: only the first one of the cell counts.
        """
        began = time.monotonic_ns()
        mine = {id(one): one for group in optimizer.param_groups for one in group["params"]}
        if any(map(finite.is_captured, mine.values())):
            return
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
        self.spent_ns += time.monotonic_ns() - began

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
            reduction = self._gradients.reduction_of(gradients) if is_before else None
            unused = None
            if is_before and reduction is None:
                reduction = unused = self._gradients.unused_of(gradients, self._digest)
            if reduction is None:
                return
            others = [each for (model, _), each in self._steps.items() if not model]
            # Ranks may be members of other groups, too, each of its own.
            number = _FIRST_PLAIN + sum(each.model.pg_id == reduction.pg_id for each in others)
            module = finite.module_of(parameters)
            tensors: Mapping[str, torch.Tensor]
            if module is None:
                tensors = {f"parameter {n}": one for n, one in enumerate(parameters)}
            else:
                tensors = dict(module.named_parameters())
            self._begin(key, _Model(module, reduction.pg_id, number), optimizer, tensors)
            self._steps[key].unused = unused
        elif is_before:
            return
        self._add(self._steps[key])

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
                # To compute with a whole DTensor is a collective, which other ranks need not call.
                part = getattr(tensor, "to_local", tensor.detach)()
                return self.hash_of(part)[:DIGEST_BYTES]
            except (RuntimeError, NotImplementedError, ValueError):  # no plain memory, or not yet
                return bytes(DIGEST_BYTES)

    def _report(self, steps: _Steps, operations: Callable[[], Iterable[Operation]]) -> ReplicaSteps:
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
            copy_site=Site() if steps.unused is None else _site_of(steps.unused, operations()),
        )


def _site_of(reduction: Reduction, operations: Iterable[Operation]) -> Site:
    """Return the line of a reduction, if its record is still there."""
    place = reduction.pg_id, reduction.number
    sites = (each.site for each in operations if (each.pg_id, each.collective_seq_id) == place)
    return next(sites, Site())


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
