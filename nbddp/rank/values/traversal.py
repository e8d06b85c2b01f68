"""Finds the tensors and small values in a value, each with its path.

It walks modules, state dicts, optimizers, nested containers, plain objects. Nothing is copied, and
no collective is called: `torch.nn.Module.state_dict` is not used, since FSDP gathers shards in it.

Runs in: the rank process, main thread, between cells.
"""

import dataclasses
import enum
import hashlib
import io
import pickle
import random
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from nbddp.rank.values import torch_objects

#: Longer lists of numbers are one leaf.
_MAX_NUMBERS = 64
_MAX_DEPTH = 30
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+| id='\d+'")
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


@dataclasses.dataclass
class Outline:
    """The types of values with parts and the modes of modules, by path; `walk` fills it."""

    kinds: dict[str, str] = dataclasses.field(default_factory=dict)  #: names of types
    modes: dict[str, bool] = dataclasses.field(default_factory=dict)  #: ``training`` of modules

    def add(self, value: Any, path: str) -> None:
        """Note a value with parts at ``path``."""
        if not isinstance(value, torch.nn.Module):
            self.kinds.setdefault(path, type(value).__name__)
            return
        for name, module in value.named_modules(remove_duplicate=False):
            at = f"{path}.{name}" if name else path
            self.kinds.setdefault(at, type(module).__name__)
            self.modes.setdefault(at, bool(module.training))

    def text(self) -> str:
        """Return the outline as one text."""
        return f"{self.kinds} {self.modes}"


def walk(value: Any, outline: Outline | None = None) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each leaf: tensors, and values without parts.

    Args:
        value: any object.
        outline: filled with the values that have parts.
    """
    yield from _walk(value, "", (), Outline() if outline is None else outline)


def parts_of(  # noqa: PLR0911 - one for each kind of value
    value: Any,
) -> Iterator[tuple[str, Any]] | None:
    """Return the direct parts of a value with their steps of the path; None: it is a leaf."""
    if isinstance(value, type) and (data := _class_data(value)):
        return ((f".{name}", item) for name, item in data.items())
    if isinstance(value, (torch.Tensor, io.IOBase, *_PLAIN)) or _is_code(value):
        return None
    if isinstance(value, torch.nn.Module):
        return _of_module(value)
    if isinstance(value, torch.Generator):
        return iter([(".get_state()", value.get_state())])
    if isinstance(value, random.Random):
        return iter([(".getstate()", value.getstate())])
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
        return None  # meshes, groups, works: their attributes are private to each rank
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return ((f".{field.name}", getattr(value, field.name, None)) for field in fields)
    own = _attributes(value)
    return ((f".{name}", item) for name, item in own.items()) if own else None


def _class_data(kind: type) -> dict[str, Any]:
    """Return the user's data and functions in a class of a cell, without Python's attributes."""
    if kind.__module__ != "__main__":
        return {}
    return {
        name: item
        for name, item in vars(kind).items()
        if not (name.startswith("_") and name.endswith("_"))
        and name != "_abc_impl"
        and (isinstance(item, types.FunctionType) or not hasattr(type(item), "__get__"))
    }


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes in the dictionary and the slots of a value."""
    own = getattr(value, "__dict__", None)
    attributes = dict(own) if isinstance(own, dict) else {}
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if not name.startswith("__") and hasattr(value, name):
                attributes.setdefault(name, getattr(value, name))
    return attributes


def text_of(value: Any) -> str:  # noqa: PLR0911 - one for each kind of value
    """Return a text that differs for different leaves; not for tensors."""
    if isinstance(value, Placeholder):
        return value.text
    if text := torch_objects.text_of(value):
        return text
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_represent, value)))}}}"
    if isinstance(value, types.FunctionType):
        return f"{value.__module__}.{value.__qualname__} {_digest_of(_function_text(value))}"
    if _is_code(value):
        return getattr(value, "__qualname__", "") or getattr(value, "__name__", "")
    if isinstance(value, memoryview):
        value = bytes(value)
    text = _represent(value)
    if text == _represent(value, with_address=True):
        return text
    # Its text has only an address: its pickle distinguishes it from others.
    pickled = _pickled(value)
    return f"{text} {_digest_of(pickled)}" if pickled else text


def can_be_compared(value: Any) -> bool:
    """Return whether `text_of` shows all of a value: not of a lock, of a file, of a generator."""
    if isinstance(value, io.IOBase):
        return bool(_pickled(value))
    if isinstance(value, (Placeholder, list, tuple, set, frozenset, memoryview, *_PLAIN)):
        return True
    if torch_objects.text_of(value):
        return True
    if _is_code(value) or _represent(value) == _represent(value, with_address=True):
        return True
    return bool(_pickled(value))


def _function_text(function: types.FunctionType) -> bytes:
    cells = [_contents(cell) for cell in function.__closure__ or ()]
    more = (function.__defaults__, function.__kwdefaults__, cells)
    return f"{_code_text(function.__code__)} {_ADDRESS.sub('', repr(more))}".encode()


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def _code_text(code: types.CodeType) -> str:
    constants = [
        _code_text(constant) if isinstance(constant, types.CodeType) else repr(constant)
        for constant in code.co_consts
    ]
    return f"{code.co_code!r} {code.co_names} {constants}"


def _pickled(value: Any) -> bytes:
    """Return the pickle of a value; empty for locks, files, threads, which cannot be pickled."""
    try:
        return pickle.dumps(value)
    except Exception:  # noqa: BLE001 - of the user's class
        return b""


def _digest_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=4).hexdigest()


def _walk(
    value: Any, path: str, above: tuple[int, ...], outline: Outline
) -> Iterator[tuple[str, Any]]:
    if id(value) in above or len(above) > _MAX_DEPTH:
        yield path, Placeholder(type(value).__name__, "inside of itself, or too deep")
        return
    parts = parts_of(value)
    if parts is None:
        yield path, value
        return
    above = (*above, id(value))
    is_module = isinstance(value, torch.nn.Module)
    is_empty = True
    for step, part in parts:
        if is_empty:
            outline.add(value, path)
        is_empty = False
        yield from _walk(part, path + step, above, outline)
    if is_empty and is_module:
        outline.add(value, path)  # it has a mode
    if is_empty:
        yield path, Placeholder(type(value).__name__, "empty")


@dataclasses.dataclass(frozen=True)
class Placeholder:
    """Stands for an empty value, and for a value that contains itself."""

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
    """Return a NumPy array as a tensor, without a copy if it is contiguous; None: not possible."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray):
        return None
    try:
        return torch.from_numpy(numpy.ascontiguousarray(value))
    except (TypeError, ValueError):
        return None  # an array of objects or strings


def _is_code(value: Any) -> bool:
    return isinstance(
        value,
        type | types.ModuleType | types.FunctionType | types.MethodType | types.BuiltinFunctionType,
    )


def _represent(value: Any, *, with_address: bool = False) -> str:
    try:
        return repr(value) if with_address else _ADDRESS.sub("", repr(value))
    except Exception as error:  # noqa: BLE001 - of the user's class
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
