"""The hashes of one replica before the first and after each step of its optimizers.

Runs in: the rank process, main thread. `Replicas` decides which parameters are a replica.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from nbddp.rank.collectives.sanitizer.reduced_gradients import Reduction
from nbddp.rank.collectives.sanitizer.whole_models import HashOf, Model, joined, site_of
from nbddp.wire.flight_recorder import (
    HASH_BYTES,
    Operation,
    ReplicaSteps,
    Site,
    StepStart,
    shortened,
)

#: Size of the hashes of single tensors that are kept for each model.
_DETAIL_BYTES: Final = 1 << 18
#: Steps of a cell that are compared.
_MAX_STEPS: Final = 100_000
_MAX_SITES: Final = 255
#: Optimizers of the same parameters that are told apart.
_MAX_OPTIMIZERS: Final = 255
#: Starts of a cell for which hashes are kept, if they fit into `_DETAIL_BYTES`.
_MAX_STARTS: Final = 8
#: Steps between which a forward has changed the buffers that it changes.
_FEWEST_FOR_BUFFERS: Final = 2
#: Changes of the settings of an optimizer; a schedule makes one in each step.
_MAX_SETTINGS: Final = 64
_NONE: Final[Mapping[str, bytes]] = {}


@dataclass
class StepHashes:
    """A replica, and the optimizer that steps it; a later one may step the same parameters."""

    model: Model
    optimizer: Any  #: the one that has stepped it last
    number: int  #: of the first optimizer among those that have stepped the model in this cell
    tensors: Mapping[str, torch.Tensor]
    hash_of: HashOf
    unused: Reduction | None = None  #: see `ReducedGradients.unused_of`
    left_out: tuple[str, ...] = ()  #: parameters whose gradients ``unused`` has left out
    early_site: Site | None = None  #: of a step before its gradients were reduced first
    last_ns: int = 0  #: when the last step ended, or the first one began
    _digests: bytearray = field(default_factory=bytearray)
    _details: bytearray = field(default_factory=bytearray)
    _newest: bytes = b""  #: of each tensor
    #: The lines of steps, each with those that called it.
    _places: list[tuple[Site, ...]] = field(default_factory=list)
    _place_of_step: bytearray = field(default_factory=bytearray)
    _later_steps: int = 0  #: of which no hashes are taken
    #: By the order of their first steps. They are held until the end of the cell: `Replicas` tells
    #: optimizers by `id`, and another one could get that of one that has gone.
    _optimizers: list[Any] = field(default_factory=list)
    _optimizer_of_step: bytearray = field(default_factory=bytearray)
    #: By the number of the optimizer: names of its states after its first step.
    _kept_states: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _buffers: dict[str, bytes] = field(default_factory=dict)  #: hashes at the first step
    #: By the step that began with them.
    _settings: list[tuple[int, str]] = field(default_factory=list)
    #: By the step: the hashes of each tensor, and of each state of the optimizer.
    _starts: dict[int, tuple[bytes, dict[str, bytes]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take the hashes of the buffers."""
        self._buffers = self._buffer_hashes()

    def begin(self, place: tuple[Site, ...], known: Mapping[str, bytes]) -> None:
        """Take the hashes before the first step.

        Args:
            place: the line of the step, and those that called it.
            known: hashes of tensors that were taken just now.
        """
        self.add(place, known)
        self._starts[1] = self._newest, self._states()

    def are_of(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Whether these are the hashes of these parameters: all that an optimizer steps."""
        mine = [(name, id(one)) for name, one in self.tensors.items()]
        return mine == [(name, id(one)) for name, one in tensors.items()]

    def note_start(self, optimizer: Any, place: tuple[Site, ...]) -> None:
        """Take the hashes before a later step, if its line or its optimizer is not the last one.

        Args:
            optimizer: it steps.
            place: the line of the step, and those that called it.
        """
        is_other, self.optimizer = optimizer is not self.optimizer, optimizer
        count = len(self._place_of_step)
        if count >= _MAX_STEPS:
            return
        size = len(self._starts) * len(self._newest)
        is_new = is_other or self._places[self._place_of_step[-1]] != place
        if is_new and len(self._starts) < _MAX_STARTS and size < _DETAIL_BYTES:
            self._starts[count] = self._all_hashes(), self._states()

    def add(self, place: tuple[Site, ...], known: Mapping[str, bytes] = _NONE) -> None:
        """Take the hashes after a step.

        Args:
            place: the line of the step, and those that called it.
            known: hashes of tensors that were taken just now.
        """
        self.last_ns = time.monotonic_ns()
        if len(self._place_of_step) >= _MAX_STEPS:
            self._later_steps += 1
            return
        parts = [known.get(name) or self.hash_of(one) for name, one in self.tensors.items()]
        self._newest = b"".join(parts)
        self._digests += joined(parts)
        if len(self._details) + len(self._newest) <= _DETAIL_BYTES:
            self._details += self._newest
        if place not in self._places and len(self._places) < _MAX_SITES:
            self._places.append(place)
        text = _settings(self.optimizer)
        is_new = not self._settings or self._settings[-1][1] != text
        if is_new and len(self._settings) <= _MAX_SETTINGS:
            is_last = len(self._settings) == _MAX_SETTINGS  # later ones are not known
            self._settings.append((len(self._place_of_step), "" if is_last else text))
        index = self._places.index(place) if place in self._places else 0
        self._place_of_step.append(index)
        self._add_optimizer()

    def _add_optimizer(self) -> None:
        """Note the optimizer of a step."""
        number = self._index()
        if number == len(self._optimizers):
            self._optimizers.append(self.optimizer)
        self._optimizer_of_step.append(min(number, _MAX_OPTIMIZERS))
        if len(self._place_of_step) > 1 and number not in self._kept_states:
            self._kept_states[number] = tuple(self._state_tensors())

    def _index(self) -> int:
        """The number of the optimizer that steps; of a new one, the next."""
        if self._optimizers and self._optimizers[-1] is self.optimizer:
            return len(self._optimizers) - 1
        numbers = (n for n, one in enumerate(self._optimizers) if one is self.optimizer)
        return next(numbers, len(self._optimizers))

    def report(
        self, operations: Callable[[], Iterable[Operation]], *, is_replaced: bool = False
    ) -> ReplicaSteps:
        """Report the hashes at the end of the cell.

        Args:
            operations: returns the last operations of this rank.
            is_replaced: another optimizer has stepped some of the parameters since: the state of
                this one is of no use any more.
        """
        # A forward changes statistics of a batch, which each rank has for its own data. The one
        # of the first step came before the first look at them.
        steady: dict[str, bytes] = {}
        if len(self._place_of_step) > _FEWEST_FOR_BUFFERS and not self.model.sends_buffers:
            steady = {
                name: value
                for name, value in self._buffer_hashes().items()
                if self._buffers.get(name) == value
            }
        states = self._states()
        classes = [shortened(type(each).__name__) for each in self._optimizers]
        kept = self._kept_states.get(self._index(), ())
        lost = [name for name in kept if name not in states]
        return ReplicaSteps(
            pg_id=self.model.pg_id,
            number=self.model.number,
            optimizer_number=self.number,
            model=shortened(self.model.name),
            optimizers=tuple(classes),
            optimizer_of_step=bytes(self._optimizer_of_step) if len(classes) > 1 else b"",
            tensors=tuple(map(shortened, self.tensors)),
            digests=bytes(self._digests),
            details=bytes(self._details),
            newest=self._all_hashes() if self._later_steps else self._newest,
            buffers=tuple(map(shortened, steady)),
            buffer_hashes=b"".join(steady.values()),
            states=tuple(map(shortened, states)),
            state_hashes=b"" if is_replaced else b"".join(states.values()),
            lost_states=() if is_replaced else tuple(map(shortened, lost)),
            settings=tuple(text for _, text in self._settings),
            setting_steps=tuple(step for step, _ in self._settings),
            sites=tuple(place[0] for place in self._places),
            site_of_step=bytes(self._place_of_step),
            callers=tuple(place[1:] for place in self._places),
            starts=tuple(
                _start(step, details, kept, states)
                for step, (details, kept) in self._starts.items()
            ),
            is_ddp=self.model.is_ddp,
            left_out=tuple(map(shortened, self.left_out)),
            may_be_own=self.unused is not None,
            early_site=self.early_site or Site(),
            later_steps=self._later_steps,
            copy_site=Site() if self.unused is None else site_of(self.unused, operations()),
        )

    def _all_hashes(self) -> bytes:
        return b"".join(map(self.hash_of, self.tensors.values()))

    def _buffer_hashes(self) -> dict[str, bytes]:
        module, ignored = self.model.module, self.model.ignored
        named = () if module is None else module.named_buffers()
        return {name: self.hash_of(each) for name, each in named if name not in ignored}

    def _states(self) -> dict[str, bytes]:
        """Return the hashes of the tensors that an optimizer keeps for each parameter."""
        return {name: self.hash_of(value) for name, value in self._state_tensors().items()}

    def _state_tensors(self) -> dict[str, torch.Tensor]:
        # The user's optimizer may keep something else there.
        kept_of = {name: self.optimizer.state.get(one) for name, one in self.tensors.items()}
        return {
            f"{key} of {name}": value
            for name, kept in kept_of.items()
            if isinstance(kept, Mapping)
            for key, value in kept.items()
            if isinstance(value, torch.Tensor)
        }


def _start(
    step: int, details: bytes, states: Mapping[str, bytes], names: Iterable[str]
) -> StepStart:
    """Report the hashes from before a step.

    Args:
        step: its number.
        details: the hash of each tensor.
        states: those of the states of the optimizer.
        names: of the states that are reported.
    """
    size = HASH_BYTES
    parts = [details[at : at + size] for at in range(0, len(details), size)]
    known = b"".join(states.get(name, bytes(size)) for name in names)
    return StepStart(step=step, digest=joined(parts), details=details, states=known)


def _settings(optimizer: Any) -> str:
    """Return the numbers of the first group of parameters: ``lr=0.1, momentum=0.9``."""
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    numbers = (f"{key}={value}" for key, value in group.items() if type(value) in (int, float))
    return shortened(", ".join(numbers))
