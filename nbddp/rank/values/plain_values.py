"""Plain values: a copy is as good as the value itself, since they refer to nothing else.

Runs in: the rank process, main thread. Cells of `%ddp catchup` call `hold`, `lend`, `put_back`,
`roll_back` and `release` by name.
"""

import collections
import copy
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from typing import Any

import torch

_LEAVES = (
    *(bool, int, float, complex, str, bytes, type(None), range, slice),
    *(torch.dtype, torch.device, torch.Size),
)
_SEQUENCES = (list, tuple, set, frozenset, collections.deque)
_MAPPINGS = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)
_MAX_PARTS = 100_000
_MAX_DEPTH = 20

#: The values that a catch-up must not change, by name.
_held: dict[str, Any] = {}
_held_names: set[str] = set()  #: with those that had no value


def is_plain(value: Any) -> bool:
    """Return whether a value may be copied to another rank, or kept there.

    An optimizer steps the parameters that it was made with, so a copy of it, or of a list of
    parameters, would train nothing. Objects of classes may refer to such.

    >>> is_plain({"losses": [0.5, 0.25]}), is_plain([torch.nn.Parameter(torch.ones(1))])
    (True, False)
    """
    count = 0
    parts = [(value, 0)]
    while parts:
        part, depth = parts.pop()
        count += 1
        if count > _MAX_PARTS or depth > _MAX_DEPTH:
            return False
        if type(part) in _MAPPINGS:
            parts += [(each, depth + 1) for pair in part.items() for each in pair]
        elif type(part) in _SEQUENCES:
            parts += [(each, depth + 1) for each in part]
        elif not (type(part) in _LEAVES or _is_array(part)):
            return False
    return True


def _is_array(value: Any) -> bool:
    if type(value) is torch.Tensor:
        is_parameter = value.is_leaf and value.requires_grad
        return value.device.type == "cpu" and not is_parameter
    dtype = getattr(value, "dtype", None)  # a function of numpy has none
    return type(value).__module__ == "numpy" and not getattr(dtype, "hasobject", True)


def hold(namespace: MutableMapping[str, Any], names: Sequence[str]) -> None:
    """Keep the values of names, those that are there, until `release`, `roll_back` or `lend`.

    Args:
        namespace: of the user.
        names: of variables.
    """
    release()
    _held_names.update(names)
    _held.update((name, namespace[name]) for name in names if name in namespace)


def lend(namespace: MutableMapping[str, Any]) -> None:
    """Put copies of the plain values that are held into a namespace that is thrown away."""
    for name, value in _held.items():
        with suppress(Exception):  # what cannot be copied is not there
            if is_plain(value):
                namespace[name] = copy.deepcopy(value)
    release()


def put_back(
    namespace: MutableMapping[str, Any], names: Sequence[str], *, only_plain: bool
) -> None:
    """Bind names to the values that are held.

    Args:
        namespace: of the user.
        names: of variables; others stay as they are.
        only_plain: leave out objects: others that were made meanwhile may refer to new ones.
    """
    for name in names:
        if name in _held and (not only_plain or is_plain(_held[name])):
            namespace[name] = _held[name]


def roll_back(namespace: MutableMapping[str, Any]) -> None:
    """Bind all names of `hold` to the values that they had, and remove those that had none."""
    for name in _held_names:
        namespace.pop(name, None)
    namespace.update(_held)
    release()


def release() -> None:
    """Keep no value any more."""
    _held.clear()
    _held_names.clear()
