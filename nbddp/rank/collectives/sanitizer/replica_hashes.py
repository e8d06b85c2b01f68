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
from nbddp.rank.collectives.sanitizer.step_hashes import StepHashes
from nbddp.rank.collectives.sanitizer.whole_models import Model, WholeModels, site_of, whole_report
from nbddp.rank.torch_private import dispatch_watch
from nbddp.rank.torch_private.gradients import gradient_of
from nbddp.wire.flight_recorder import HASH_BYTES, Operation, ReplicaSteps, Site

_Module: Any = torch.nn.Module
_Optimizer: Any = Optimizer
_ModuleRef: TypeAlias = "weakref.ref[torch.nn.Module]"

#: Numbers of replicas that are no DDP models; those of DDP models are numbers of collectives.
_FIRST_PLAIN = 1 << 40
#: The same for those that no optimizer steps, with the number of their reduction.
_FIRST_BY_HAND = 2 << 40
#: Modules are looked for this many times in a cell: it takes as long as to collect garbage.
_MAX_SOUGHT = 8


class Replicas:
    """The replicas of a cell, of DDP models and of others, and the hashes of their steps.

    Args:
        sites: finds the lines of the user's code.
    """

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        #: Returns the hash of a tensor. Set by the server.
        self.hash_of: Callable[[torch.Tensor], bytes] | None = None
        self._steps: dict[
            tuple[int, int], StepHashes
        ] = {}  # by DDP model, 0 for none, and optimizer
        self._gradients = ReducedGradients()
        #: By identity: the hashes of modules with gradients, when some were reduced first.
        self._hashes_before: dict[int, tuple[_ModuleRef, dict[str, bytes]]] = {}
        self._sought: set[tuple[Any, ...]] = set()  #: shapes whose modules were looked for
        #: By identity: modules whose gradients were reduced when they were looked at.
        self._by_hand: dict[int, tuple[_ModuleRef, Reduction, tuple[str, ...]]] = {}
        self._whole = WholeModels(self._hash_of)
        #: By identity: parameters that were stepped while no gradient was reduced, with their
        #: hashes before, and the line of that step.
        self._early: dict[int, tuple[Any, bytes, Site]] = {}
        #: By identity: such optimizers. One may have the identity of one that has gone.
        self._unreduced: dict[int, weakref.ref[Optimizer]] = {}
        self._hooks: list[Any] = []
        self.spent_ns = 0
        self._running: list[int] = []  #: optimizers that step now: one may call another
        self._step_place: tuple[Site, ...] = ()  #: of the outermost of them

    def begin(self) -> None:
        """Begin a cell."""
        self.spent_ns = 0
        self._running = []
        self._gradients.begin()
        if self.hash_of is not None:
            _Module.zero_grad = self._noted(_Module.zero_grad, lambda module: (module,))
            _Optimizer.zero_grad = self._noted(_Optimizer.zero_grad, self._modules_of)
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
            _Optimizer.zero_grad = _Optimizer.zero_grad.__wrapped__
        for hook in self._hooks:
            hook.remove()
        try:
            reports = self._step_reports(operations)
            if self._hooks and not has_failed:
                reports += self._by_hand_reports(operations)
                stepped = {each.model.key for each in self._steps.values()}
                is_any = bool(stepped or self._unreduced)
                reports += self._whole.reports(operations, stepped, others_step=is_any)
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
        self._hashes_before.clear()
        self._whole.clear()
        self._early.clear()
        self._unreduced.clear()
        self._sought.clear()

    def _noted(
        self, original: Callable[..., Any], modules_of: Callable[[Any], Iterable[torch.nn.Module]]
    ) -> Callable[..., Any]:
        """Return `zero_grad`, before which gradients are looked at: it may drop them.

        Args:
            original: the method of a module or of an optimizer.
            modules_of: returns the modules whose gradients it drops.
        """

        @functools.wraps(original)
        def run(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if self._gradients:
                for module in modules_of(owner):
                    self._look(module)
            return original(owner, *args, **kwargs)

        return run

    def _modules_of(self, optimizer: Optimizer) -> list[torch.nn.Module]:
        """The modules that train, of whose parameters an optimizer has some."""
        mine = {id(one) for group in optimizer.param_groups for one in group["params"]}
        known = [reference() for reference, _ in self._hashes_before.values()]
        modules = [module for module in known if module is not None]
        return [each for each in modules if any(id(one) in mine for one in each.parameters())]

    def _look(self, module: torch.nn.Module) -> None:
        """Note a module if all its gradients were reduced in one group."""
        known = self._by_hand.get(id(module))
        if known is not None and known[0]() is module:
            return
        named = [
            (name, gradient)
            for name, one in module.named_parameters()
            if (gradient := gradient_of(one)) is not None
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
        others = self._stepped_tensors() | _ddp_parameters()
        # The numbers of reductions are equal on all ranks. Neither is the order of modules in
        # memory, nor which of those that nothing uses any more are still there.
        of_reduction: dict[Reduction, list[tuple[torch.nn.Module, tuple[str, ...]]]] = {}
        for reference, reduction, names in self._by_hand.values():
            module = reference()
            before = self._hashes_before.get(id(module))
            if module is not None and before is not None and before[0]() is module:
                of_reduction.setdefault(reduction, []).append((module, names))
        for reduction, modules in of_reduction.items():
            if len(modules) > 1:
                continue  # ranks cannot tell them apart
            ((module, names),) = modules
            parts = self._hashes_before[id(module)][1]
            tensors = {name: one for name, one in module.named_parameters() if name in names}
            if tensors.keys() <= parts.keys() and others.isdisjoint(map(id, tensors.values())):
                model = Model(module, reduction.pg_id, _FIRST_BY_HAND + reduction.number)
                site = site_of(reduction, operations())
                early_site = None
                early = [self._early_of(one) for one in tensors.values()]
                known = [each for each in early if each is not None]
                if known and len(known) == len(tensors):
                    # An optimizer has stepped it before: its hashes are those of that time.
                    parts = {name: part for name, (part, _) in zip(tensors, known, strict=True)}
                    early_site = known[0][1]
                yield whole_report(
                    model, site, parts, tensors, self._hash_of,
                    early_site=early_site, others_step=bool(self._steps or self._unreduced),
                )  # fmt: skip

    def _stepped_tensors(self) -> set[int]:
        """The identities of parameters that optimizers have stepped."""
        return {id(one) for steps in self._steps.values() for one in steps.tensors.values()}

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
            self._whole.note_sender(counters, reduction)
            return
        self._gradients.note_copies(reduction, tensors, self._hash_of)
        key = tuple((each.shape, each.dtype) for each in tensors)
        if key not in self._sought and len(self._sought) < _MAX_SOUGHT:
            self._sought.add(key)
            self._note_before()

    def _note_before(self) -> None:
        """Take the hashes of modules that train: the code may update them without an optimizer.

        DDP reduces the gradients of its models by itself.
        """
        of_ddp = _ddp_parameters()
        for module in finite.root_modules():
            known = self._hashes_before.get(id(module))
            if known is not None and known[0]() is module:
                continue
            named = [each for each in module.named_parameters() if id(each[1]) not in of_ddp]
            if any(gradient_of(one) is not None for _, one in named):
                parts = {name: self._hash_of(one) for name, one in named}
                self._hashes_before[id(module)] = weakref.ref(module), parts

    def _before(self, optimizer: Optimizer, *_: Any) -> None:
        number = id(optimizer)
        if number in self._running:  # its last step has raised
            del self._running[self._running.index(number) :]
        self._running.append(number)
        if len(self._running) == 1:
            self._step_place = ()
            self._note(optimizer, is_before=True)

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        if self._running:
            self._running.pop()
        if not self._running:
            self._note(optimizer, is_before=False)
            self._step_place = ()
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
                replica = Model.of_ddp(model, counters.info.pg_id)
                known = self._whole.note(replica)
                same = self._steps_of(replica.key)
                if is_before and self._join(key, same, optimizer, tensors):
                    continue
                self._begin(key, replica, optimizer, tensors, known)
            else:
                self._go_on(key, optimizer, is_before=is_before)
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
            gradients = [each for each in map(gradient_of, parameters) if each is not None]
            reduction = self._gradients.reduction_of(gradients) if is_before else None
            unused = None
            if is_before and reduction is None:
                reduction = unused = self._gradients.unused_of(gradients, self._hash_of)
            if reduction is None:
                noted = self._unreduced.get(id(optimizer))
                if is_before and (noted is None or noted() is not optimizer):
                    self._unreduced[id(optimizer)] = weakref.ref(optimizer)
                    self._begin_forgotten(optimizer, parameters)
                    self._note_early(parameters)
                return
            module = finite.module_of(parameters)
            tensors, trained = self._gradients.named(module, parameters, reduction.pg_id)
            plain = self._plain_steps(reduction)
            same = [each for each in plain if each.unused is None]
            if unused is None and self._join(key, same, optimizer, tensors):
                return
            model = Model(module, reduction.pg_id, _FIRST_PLAIN + len(plain))
            known: Mapping[str, bytes] = {}
            if unused is None:
                known = self._whole.note_tensors(model, trained, reduction)
            steps = self._begin(key, model, optimizer, tensors, known)
            steps.unused = unused
            early = self._early_of(parameters[0]) if unused is None else None
            steps.early_site = None if early is None else early[1]
        else:
            self._go_on(key, optimizer, is_before=is_before)

    def _begin_forgotten(self, optimizer: Optimizer, parameters: Iterable[torch.Tensor]) -> None:
        """Begin with the layers in which the code has reduced some of the gradients only."""
        if not self._gradients:
            return
        mine = {id(one) for one in parameters if gradient_of(one) is not None}
        partly: list[tuple[torch.nn.Module, dict[str, torch.Tensor], list[str], Reduction]] = []
        for root in finite.root_modules():
            tensors: dict[str, torch.Tensor] = {}
            names: list[str] = []
            reductions: list[Reduction] = []
            for prefix, layer in root.named_modules():
                own = {
                    name: one
                    for name, one in layer.named_parameters(prefix, recurse=False)
                    if id(one) in mine
                }
                forgotten = self._gradients.forgotten_of(
                    {name: one.grad for name, one in own.items() if one.grad is not None}
                )
                if forgotten is not None:
                    tensors |= own
                    names += forgotten[0]
                    reductions.append(forgotten[1])
            if len({each.pg_id for each in reductions}) == 1:
                partly.append((root, tensors, names, max(reductions, key=lambda each: each.number)))
        if len(partly) == 1:
            ((root, tensors, names, reduction),) = partly
            number = _FIRST_PLAIN + len(self._plain_steps(reduction))
            model = Model(root, reduction.pg_id, number, sends_buffers=True)
            key = 0, id(optimizer)
            steps = self._begin(key, model, optimizer, tensors, {})
            steps.unused, steps.left_out = reduction, tuple(names)

    def _early_of(self, parameter: torch.Tensor) -> tuple[bytes, Site] | None:
        """The hash of a parameter before such a step, and the line of the step."""
        reference, part, site = self._early.get(id(parameter), (None, b"", Site()))
        return (part, site) if reference is not None and reference() is parameter else None

    def _note_early(self, parameters: Iterable[torch.Tensor]) -> None:
        """Note parameters that an optimizer steps before their gradients are reduced."""
        site = self._sites.site_of(self._sites.user_frame(sys._getframe(4)))
        for parameter in parameters:
            self._early[id(parameter)] = weakref.ref(parameter), self._hash_of(parameter), site

    def _begin(
        self, key: tuple[int, int], model: Model, optimizer: Optimizer,
        tensors: Mapping[str, torch.Tensor], known: Mapping[str, bytes],
    ) -> StepHashes:  # fmt: skip
        """Begin with a replica whose first step begins; ``known`` are hashes from just now."""
        number = len(self._steps_of(model.key))
        steps = StepHashes(model, optimizer, number, tensors, self._hash_of)
        self._steps[key] = steps
        steps.begin(self._place(), known)
        return steps

    def _go_on(self, key: tuple[int, int], optimizer: Optimizer, *, is_before: bool) -> None:
        """Add the hashes of a later step, before or after it."""
        steps = self._steps[key]
        if is_before:
            steps.note_start(optimizer, self._place())
        else:
            steps.add(self._place())

    def _join(
        self, key: tuple[int, int], same: Iterable[StepHashes], optimizer: Optimizer,
        tensors: Mapping[str, torch.Tensor],
    ) -> bool:  # fmt: skip
        """Go on with the hashes of another optimizer of the same parameters, if there is one.

        Args:
            key: of the optimizer.
            same: hashes of the same model.
            optimizer: its step begins.
            tensors: all that it steps of the model.
        """
        for steps in same:
            if steps.are_of(tensors):
                self._steps[key] = steps
                self._go_on(key, optimizer, is_before=True)
                return True
        return False

    def _steps_of(self, model: tuple[str, int]) -> list[StepHashes]:
        return [each for each in self._each_steps() if each.model.key == model]

    def _plain_steps(self, reduction: Reduction) -> list[StepHashes]:
        """Those of replicas that are no DDP models, in the group of a reduction.

        Their number is the next number of such a replica: ranks may be members of other groups,
        too, each of its own.
        """
        plain = [each for each in self._each_steps() if not each.model.is_ddp]
        return [each for each in plain if each.model.pg_id == reduction.pg_id]

    def _each_steps(self) -> list[StepHashes]:
        """Each once: several optimizers may have one."""
        return list({id(each): each for each in self._steps.values()}.values())

    def _step_reports(self, operations: Callable[[], Iterable[Operation]]) -> list[ReplicaSteps]:
        """The hashes of steps."""
        reports = []
        each_steps = self._each_steps()
        for steps in each_steps:
            mine = set(map(id, steps.tensors.values()))
            later = (each for each in each_steps if each.last_ns > steps.last_ns)
            is_replaced = any(not mine.isdisjoint(map(id, each.tensors.values())) for each in later)
            reports.append(steps.report(operations, is_replaced=is_replaced))
        return reports

    def _place(self) -> tuple[Site, ...]:
        """The line that steps, and the lines that called it: the same until the step ends."""
        if not self._step_place:
            frame = self._sites.user_frame(sys._getframe(3))
            self._step_place = self._sites.stack(frame) or (Site(),)
        return self._step_place

    def _hash_of(self, tensor: torch.Tensor) -> bytes:
        """The first bytes of the hash of a tensor; zeros: it has no plain memory, or not yet."""
        assert self.hash_of is not None  # noqa: S101 - `begin` has looked
        with torch.no_grad(), dispatch_watch.unseen():
            try:
                # To compute with a whole DTensor is a collective, which other ranks need not call.
                part = getattr(tensor, "to_local", tensor.detach)()
                return self.hash_of(part)[:HASH_BYTES]
            except (RuntimeError, NotImplementedError, ValueError):  # no plain memory, or not yet
                return bytes(HASH_BYTES)


def _ddp_parameters() -> set[int]:
    """The identities of the parameters of DDP models."""
    return {id(one) for model in torch_private.ddp_models() for one in model.parameters()}
