"""The states of the random generators that a process has by itself.

Runs in: the rank process, main thread. Cells of `%ddp catchup` call `share_own`, `hold` and
`put_back` by name.
"""

import hashlib
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from nbddp.rank.collectives import state_sync

#: How to get and set the state of a generator.
Access = tuple[Callable[[], Any], Callable[[Any], Any]]


def _generators() -> dict[str, Access]:
    """Return how to get and set the state of each generator that exists; others are not made."""
    generators: dict[str, Access] = {
        "random": (random.getstate, random.setstate),
        "torch": (torch.get_rng_state, torch.set_rng_state),
    }
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        generators["numpy"] = (numpy_random.get_state, numpy_random.set_state)
    if torch.cuda.is_initialized():
        generators["cuda"] = (torch.cuda.get_rng_state, torch.cuda.set_rng_state)
    return generators


def take() -> dict[str, Any]:
    """Return the states of all generators."""
    return {name: get() for name, (get, _) in _generators().items()}


def put(states: Mapping[str, Any]) -> None:
    """Set generators to states that `take` has returned."""
    for name, (_, set_state) in _generators().items():
        if name in states:
            set_state(states[name])


_held: dict[str, Any] = {}


def hold() -> None:
    """Keep the states of all generators for `put_back`."""
    _held.update(take())


def put_back() -> None:
    """Set generators to the states that are held."""
    put(_held)
    _held.clear()


def digests() -> dict[str, str]:
    """Return a hash of the state of each generator."""
    return {name: digest(state) for name, state in take().items()}


def is_unused(name: str) -> bool:
    """Whether a generator has drawn nothing since it was made, as far as its state tells."""
    if name == "numpy":  # how far it is in its numbers; seeded, it would be at another place
        made = sys.modules["numpy.random"].RandomState().get_state()
        return bool(_generators()[name][0]()[2:] == made[2:])
    if name == "cuda":  # 8 bytes of the seed, then 8 bytes of the place
        return not any(torch.cuda.get_rng_state()[8:].tolist())
    return False


def digest(state: Any) -> str:
    """Return a hash of the state of a generator."""
    return hashlib.sha256(_text(state).encode()).hexdigest()


def _text(state: Any) -> str:
    """Return the state with all numbers of its arrays, which `repr` would leave out."""
    if isinstance(state, tuple):
        return " ".join(map(_text, state))
    if isinstance(state, dict):
        return " ".join(f"{name} {_text(state[name])}" for name in sorted(state))
    return str(state.tolist() if hasattr(state, "tolist") else state)


def share_own(names: Sequence[str], *, src: int, to: Sequence[int]) -> None:
    """Give the generators of some ranks the states that those of one rank have.

    Args:
        names: of generators that `digests` names.
        src: global rank that has the states.
        to: global ranks that get them; all ranks call it.
    """
    generators = _generators()
    share({name: generators[name] for name in names if name in generators}, src=src, to=to)


def share(generators: Mapping[str, Access], *, src: int, to: Sequence[int]) -> None:
    """Give some generators the states that those of one rank have, by name.

    Its operations have this function as their origin, see `call_sites`.

    Args:
        generators: those of this rank.
        src: global rank that has the states.
        to: global ranks that get them; all ranks call it.
    """
    state_sync.give(_Generators(generators), src=src, to=to)


class _Generators:
    """Some generators, with the methods that `nbddp.sync` uses.

    Args:
        generators: how to get and set the state of each.
    """

    def __init__(self, generators: Mapping[str, Access]) -> None:
        self._generators = generators

    def state_dict(self) -> dict[str, Any]:
        """Return their states."""
        return {name: get() for name, (get, _) in self._generators.items()}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Set their states."""
        for name, state in states.items():
            if name in self._generators:
                self._generators[name][1](state)
