"""The states of the random generators that a process has by itself.

Runs in: the rank process, main thread. Cells of `%ddp catchup` call `share`, `hold` and `put_back`
by name.
"""

import hashlib
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from nbddp.rank.collectives import state_sync

_Generator = tuple[Callable[[], Any], Callable[[Any], None]]


def _generators() -> dict[str, _Generator]:
    """Return how to get and set the state of each generator that exists; others are not made."""
    generators: dict[str, _Generator] = {
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
    return {
        name: hashlib.sha256(_text(state).encode()).hexdigest() for name, state in take().items()
    }


def _text(state: Any) -> str:
    """Return the state with all numbers of its arrays, which `repr` would leave out."""
    if isinstance(state, tuple):
        return " ".join(map(_text, state))
    return str(state.tolist() if hasattr(state, "tolist") else state)


def share(names: Sequence[str], *, src: int, to: Sequence[int]) -> None:
    """Give the generators of some ranks the states that those of one rank have.

    Its operations have this function as their origin, see `call_sites`.

    Args:
        names: of generators that `digests` names.
        src: global rank that has the states.
        to: global ranks that get them; all ranks call it.
    """
    state_sync.give(_Generators(names), src=src, to=to)


class _Generators:
    """Some generators, with the methods that `nbddp.sync` uses.

    Args:
        names: of generators that `digests` names.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def state_dict(self) -> dict[str, Any]:
        """Return their states."""
        states = take()
        return {name: states[name] for name in self._names if name in states}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Set their states."""
        put(states)
