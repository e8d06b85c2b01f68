"""The tensors and small values that a value is made of, each with its place in it.

Modules, state dicts, optimizers, nested containers, plain objects. Nothing is copied, and no
collective is called: `torch.nn.Module.state_dict` is not used, since FSDP gathers shards in it.

Runs in: the rank process, main thread, between cells.
"""

import dataclasses
import enum
import hashlib
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

#: Longer lists of numbers are one leaf.
_MAX_NUMBERS = 64
_MAX_DEPTH = 30
_ADDRESS = re.compile(r" at 0x[0-9a-f]+| id='\d+'")
_OF_RANKS = ("torch.distributed", "torch._C._distributed", "nbddp.")
_PLAIN = (
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(...),
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.Size,
    range,
)


def walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Path and leaf; tensors, and values that have no parts."""
    yield from _walk(value, "", ())


def parts_of(  # noqa: PLR0911 - one for each kind of value
    value: Any,
) -> Iterator[tuple[str, Any]] | None:
    """What a value is made of, one level down; None: it is a leaf."""
    if isinstance(value, (torch.Tensor, *_PLAIN)) or _is_code(value):
        return None
    if isinstance(value, torch.nn.Module):
        return _of_module(value)
    if isinstance(value, torch.Generator):
        return iter([(".get_state()", value.get_state())])
    if isinstance(value, Mapping):
        return ((f"[{key!r}]", item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return _of_sequence(value)
    if isinstance(value, set | frozenset | bytearray | memoryview):
        return None
    if (array := as_tensor(value)) is not None:
        return iter([("", array)])
    if callable(getattr(value, "state_dict", None)):
        return iter([("", value.state_dict())])  # optimizers, schedulers, scalers
    if type(value).__module__.startswith(_OF_RANKS):
        return None  # meshes, groups, works: inside, each rank notes what is its own
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return ((f".{field.name}", getattr(value, field.name, None)) for field in fields)
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict) and own:
        return ((f".{name}", item) for name, item in own.items())
    return None


def text_of(value: Any) -> str:
    """All that tells a leaf that is no tensor from another."""
    if isinstance(value, Hollow):
        return value.text
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_represent, value)))}}}"
    if isinstance(value, types.FunctionType):
        code = value.__code__
        made = hashlib.blake2b(code.co_code + repr(code.co_names).encode(), digest_size=4)
        return f"{value.__module__}.{value.__qualname__} {made.hexdigest()}"
    if _is_code(value):
        return getattr(value, "__qualname__", "") or getattr(value, "__name__", "")
    return _represent(value)


def _walk(value: Any, path: str, above: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    if id(value) in above or len(above) > _MAX_DEPTH:
        yield path, Hollow(type(value).__name__, "inside of itself, or too deep")
        return
    parts = parts_of(value)
    if parts is None:
        yield path, value
        return
    above = (*above, id(value))
    is_empty = True
    for step, part in parts:
        is_empty = False
        yield from _walk(part, path + step, above)
    if is_empty:
        yield path, Hollow(type(value).__name__, "empty")


@dataclasses.dataclass(frozen=True)
class Hollow:
    """Stands for what is empty, and for what is inside of itself."""

    type_name: str
    text: str


def _of_module(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    for name, parameter in module.named_parameters(remove_duplicate=False):
        yield f".{name}", parameter
    for name, buffer in module.named_buffers(remove_duplicate=False):
        yield f".{name}", buffer


def _of_sequence(value: Any) -> Iterator[tuple[str, Any]] | None:
    fields = getattr(value, "_fields", None)
    if fields is not None and len(fields) == len(value):
        return ((f".{name}", item) for name, item in zip(fields, value, strict=True))
    if len(value) > _MAX_NUMBERS and all(isinstance(item, _PLAIN) for item in value):
        return None
    return ((f"[{index}]", item) for index, item in enumerate(value))


def as_tensor(value: Any) -> torch.Tensor | None:
    """An array of NumPy's, in place."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray):
        return None
    try:
        return torch.from_numpy(numpy.ascontiguousarray(value))
    except (TypeError, ValueError):
        return None  # of objects, of strings


def _is_code(value: Any) -> bool:
    return isinstance(
        value,
        type | types.ModuleType | types.FunctionType | types.MethodType | types.BuiltinFunctionType,
    )


def _represent(value: Any) -> str:
    try:
        return _ADDRESS.sub("", repr(value))
    except Exception as error:  # noqa: BLE001 - of the user's class
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
