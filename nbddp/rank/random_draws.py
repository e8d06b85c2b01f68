"""The random numbers in the values of cells that run again for `%ddp catchup`.

A cell that runs again draws again. Numbers of a seeded generator are those of before; others are
not. Generators are compared before and after each statement, so a draw in a library counts, too.
The seed that a `DataLoader` without workers draws for workers does not count.

Runs in: the rank process, main thread. Cells of `%ddp catchup` call `share` by name.
"""

import dis
import random
import sys
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from nbddp.rank import random_states
from nbddp.rank.torch_private import data_loaders

_SEEDING = {"manual_seed", "manual_seed_all", "seed", "set_seed", "seed_all", "seed_everything"}
_STORES, _LOADS = ("STORE_NAME", "STORE_GLOBAL"), ("LOAD_NAME", "LOAD_GLOBAL")
#: Values that a statement may fill with random numbers in place: ``random.shuffle(order)``.
_FILLED = (list, dict, set, torch.Tensor)


class Draws:
    """The names that hold numbers of generators that no statement has seeded.

    Args:
        namespace: of the user, in which the statements run.
    """

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._drawn: set[str] = set()
        self._seeded: set[str] = set()  # generators that the process has by itself
        #: The states of torch's generator, before and after each base seed of a data loader.
        self._base_seeds: list[tuple[str, str]] = []

    def names(self) -> tuple[str, ...]:
        """Return the names, sorted."""
        return tuple(sorted(self._drawn))

    def seeded(self) -> tuple[str, ...]:
        """Return the generators of the process that statements have seeded, sorted."""
        return tuple(sorted(self._seeded))

    @contextmanager
    def watching(self, statement: types.CodeType) -> Iterator[None]:
        """Watch a statement of a cell, which runs inside."""
        before = random_states.digests()
        self._base_seeds.clear()
        unhook = data_loaders.hook_base_seeds(self._noting_base_seed)
        try:
            yield
        finally:
            unhook()
            after = random_states.digests()
            changed = {name for name in after if after[name] != before.get(name)}
            # A library that the statement imports may make NumPy's generator, and draw nothing.
            changed = {n for n in changed if n in before or not random_states.is_unused(n)}
            if self._are_base_seeds(before["torch"], after["torch"]):
                changed.discard("torch")
            self._note(statement, changed)

    @contextmanager
    def _noting_base_seed(self) -> Iterator[None]:
        """Note a draw of a data loader that no value depends on, if it is no other draw."""
        before = torch.get_rng_state()
        yield
        after, drawn = torch.get_rng_state(), torch.Generator()
        drawn.set_state(before)
        torch.empty((), dtype=torch.int64).random_(generator=drawn)
        if torch.equal(drawn.get_state(), after):  # else a sampler has drawn, too
            self._base_seeds.append((random_states.digest(before), random_states.digest(after)))

    def _are_base_seeds(self, before: str, after: str) -> bool:
        """Whether torch's generator has drawn nothing but base seeds between two of its states."""
        for start, end in self._base_seeds:
            if start != before:
                return False
            before = end
        return before == after

    def _note(self, statement: types.CodeType, changed: set[str]) -> None:
        used, stored = set(_used_names(statement)), _names_in(statement, _STORES)
        called = (self._namespace.get(name) for name in tuple(used))
        for value in called:
            if type(value) is types.FunctionType:
                used.update(value.__code__.co_names)
        if used & _SEEDING:
            self._seeded |= changed
        if changed - self._seeded:
            filled = {name for name in used if issubclass(type(self._namespace.get(name)), _FILLED)}
            self._drawn |= stored or filled
        elif self._drawn & (used - stored | _names_in(statement, _LOADS)):
            self._drawn |= stored
        else:
            self._drawn -= stored


def _used_names(code: types.CodeType) -> Iterator[str]:
    """Return the names that code uses, also inside its comprehensions and functions."""
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _used_names(value)


def _names_in(code: types.CodeType, steps: Collection[str]) -> set[str]:
    return {step.argval for step in dis.get_instructions(code) if step.opname in steps}


def of_user(namespace: Mapping[str, Any]) -> dict[str, str]:
    """Return a hash of the state of each generator that the user has made, by name."""
    pairs = ((name, _access(value)) for name, value in tuple(namespace.items()))
    return {name: random_states.digest(access[0]()) for name, access in pairs if access}


def _access(value: Any) -> random_states.Access | None:
    """Return how to get and set the state of a generator; None: it is no generator.

    By the type: `isinstance` asks the user's class for ``__class__``, which may raise.
    """
    kind = type(value)
    if issubclass(kind, torch.Generator):
        return value.get_state, value.set_state
    if kind is random.Random:
        return value.getstate, value.setstate
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is None:
        return None
    if issubclass(kind, numpy_random.RandomState):
        return value.get_state, value.set_state
    if issubclass(kind, numpy_random.Generator):
        bits = value.bit_generator
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    return None


def share(
    namespace: Mapping[str, Any], names: Sequence[str], *, src: int, to: Sequence[int]
) -> None:
    """Give generators of the user on some ranks the states that those of one rank have.

    Args:
        namespace: of the user.
        names: of these generators; others of the process are left as they are.
        src: global rank that has the states.
        to: global ranks that get them; all ranks call it.
    """
    pairs = ((name, _access(namespace.get(name))) for name in names)
    random_states.share({name: access for name, access in pairs if access}, src=src, to=to)
