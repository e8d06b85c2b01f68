"""Hashes of the replicas of DDP models after each step of an optimizer; the notebook compares them.

Runs in: the rank process, main thread. No collective is called.
"""

import sys
import time
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


@dataclass
class _Steps:
    """A replica, and the optimizer that steps it."""

    model: Any
    optimizer: Any
    number: int  #: of the optimizer among those that have stepped the model in this cell
    tensors: dict[str, torch.Tensor]
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
        self._steps: dict[tuple[int, int], _Steps] = {}  # by model and optimizer
        self._hooks: list[Any] = []
        self.spent_ns = 0
        self._running: list[int] = []  #: optimizers that step now: one may call another

    def begin(self) -> None:
        """Begin a cell."""
        self.spent_ns = 0
        self._running = []
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
        reports = (self._report(each) for each in steps.values())
        return tuple(report for report in reports if report is not None)

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

    def _note(self, optimizer: Optimizer, *, is_before: bool) -> None:
        """Add the hashes of the models whose parameters an optimizer has.

        Args:
            optimizer: it steps.
            is_before: its step begins: only the first one of the cell counts.
        """
        mine = {id(one) for group in optimizer.param_groups for one in group["params"]}
        for model in torch_private.ddp_models():
            key = id(model), id(optimizer)
            steps = self._steps.get(key)
            if steps is None:
                tensors = {
                    name: parameter
                    for name, parameter in model.module.named_parameters()
                    if id(parameter) in mine and name not in model.parameters_to_ignore
                }
                if not tensors or torch_private.parts_on_purpose(model):
                    continue
                number = sum(each.model is model for each in self._steps.values())
                steps = self._steps[key] = _Steps(model, optimizer, number, tensors)
                steps.buffers = self._buffers(model)
            elif is_before:
                continue
            self._add(steps)

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

    def _buffers(self, model: Any) -> dict[str, bytes]:
        return {
            name: self._digest(buffer)
            for name, buffer in model.module.named_buffers()
            if name not in model.parameters_to_ignore
        }

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

    def _report(self, steps: _Steps) -> ReplicaSteps | None:
        counters = getattr(steps.model.process_group, "counters", None)
        if counters is None:
            return None
        # A forward changes statistics of a batch, which each rank has for its own data.
        steady = {
            name: digest
            for name, digest in self._buffers(steps.model).items()
            if steps.buffers.get(name) == digest
        }
        states = self._states(steps)
        return ReplicaSteps(
            pg_id=counters.info.pg_id,
            number=torch_private.numbers_of(steps.model).number,
            optimizer_number=steps.number,
            model=shortened(type(steps.model.module).__name__),
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
