"""Values of a rank at a glance, while a cell occupies its main thread: for ``nbddp console``.

Runs in: the rank process, thread ``nbddp-side``. No code of the user is called, and nothing waits
for a device: `repr` of an object may do both, and a collective in it would never complete.
"""

import ast
import sys
import threading
import types
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from IPython.core import guarded_eval
from torch import nn

from nbddp.rank import code_sites
from nbddp.rank.cells.shell import RankShell
from nbddp.wire.values.preview_text import shape_text

_MAX_ITEMS = 6
_MAX_CHARS = 200
_MAX_DEPTH = 3
_MAX_NAMES = 60
_NUMBERS_AND_TEXTS = (bool, int, float, complex, str, bytes, type(None))
#: Values of imports and definitions: `%who` lists them, and users do not compare them.
CODE_TYPES = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)
_BRACKETS: dict[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), dict: ("{", "}")}
#: Reading one of these attributes of a class through an instance calls no code in Python.
_SAFE_DESCRIPTORS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    classmethod,
    staticmethod,
)


class NoGlanceError(Exception):
    """The code is more than a name with attributes and items, or would call the user's code."""


def glance(shell: RankShell, code: str) -> str:
    """Describe the value of ``code``, or all of the user's variables if it is empty.

    Args:
        shell: has the user's names.
        code: a name, with attributes and items: ``model.fc.weight``, ``losses[-1]``.

    Returns:
        The value, or ``NameError: ...`` and the like.

    Raises:
        NoGlanceError: the value cannot be told without running code.
    """
    names = _names(shell)
    if not code:
        lines = [f"{name} = {_text(value)}" for name, value in _of_user(shell, names)]
        return "\n".join(lines[-_MAX_NAMES:]) or "no variables"
    try:
        return _text(_value(ast.parse(code, mode="eval").body, names))
    except (SyntaxError, RecursionError):
        raise NoGlanceError from None
    except (AttributeError, LookupError, NameError, TypeError) as error:
        return f"{type(error).__name__}: {error}"


def _names(shell: RankShell) -> dict[str, Any]:
    """Return the user's names, with those of the innermost function of a cell that runs now."""
    # These are copies, because the main thread may add names meanwhile.
    names = dict(shell.user_ns)
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and not code_sites.cell_of(frame.f_code.co_filename):
        frame = frame.f_back
    return names if frame is None else {**names, **frame.f_locals}


def _of_user(shell: RankShell, names: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    hidden = {**shell.user_ns_hidden, **shell.predefined}
    return [
        (name, value)
        for name, value in names.items()
        if not name.startswith("_")
        and not (name in hidden and hidden[name] is value)
        and not issubclass(type(value), CODE_TYPES)
    ]


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    policy = guarded_eval.EVALUATION_POLICIES["limited"]
    match node:
        case ast.Name(id=name):
            if name not in names:
                raise NameError(f"name {name!r} is not defined")
            return names[name]
        case ast.Attribute(value=inner, attr=name):
            owner = _value(inner, names)
            descriptor = next(
                (vars(kind)[name] for kind in type(owner).__mro__ if name in vars(kind)), None
            )
            is_plain = not hasattr(type(descriptor), "__get__")
            is_safe = is_plain or isinstance(descriptor, _SAFE_DESCRIPTORS)
            if is_safe and policy.can_get_attr(owner, name):
                return getattr(owner, name)
        case ast.Subscript(value=inner, slice=index):
            owner, item = _value(inner, names), _item(index, names)
            if _is_plain_tensor(owner) or policy.can_get_item(owner, item):
                return owner[item]
        case _:
            pass
    raise NoGlanceError


def _item(node: ast.expr, names: Mapping[str, Any]) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        item = _value(node, names)
    if type(item) not in _NUMBERS_AND_TEXTS:  # others have code for their hash
        raise NoGlanceError
    return item


def _is_plain_tensor(value: Any) -> bool:
    return type(value) in (torch.Tensor, nn.Parameter)


def _text(value: Any, depth: int = 0) -> str:  # noqa: PLR0911 - one for each kind of value
    kind = type(value)
    if kind in (str, bytes):
        text = repr(value[:_MAX_CHARS])
        return text if len(value) <= _MAX_CHARS else f"{text}… ({len(value):,} in all)"
    if kind in (int, float, complex, bool, type(None), range, slice):
        is_long = kind is int and value.bit_length() > 4 * _MAX_CHARS
        return f"int of {value.bit_length():,} bits" if is_long else repr(value)
    if kind in (list, tuple, set, frozenset, dict):
        return _container(value, depth)
    if issubclass(kind, torch.Tensor):
        return _tensor(value)
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        return f"ndarray  {value.dtype} {shape_text(value.shape)}"
    if issubclass(kind, nn.Module):
        parts = ", ".join(list(vars(value).get("_modules") or ())[:_MAX_ITEMS])
        return f"{kind.__name__} (a module{f': {parts}' if parts else ''})"
    if kind in (types.FunctionType, types.MethodType, type, types.ModuleType):
        return f"{kind.__name__} {value.__name__}"
    return f"an object of {kind.__module__}.{kind.__qualname__}"


def _container(value: Any, depth: int) -> str:
    kind, few = type(value), list(value.items() if type(value) is dict else value)
    count, few = len(few), few[:_MAX_ITEMS]
    if depth == _MAX_DEPTH:
        return f"{kind.__name__} of {count}"
    if kind is dict:
        texts = [f"{_text(key, depth + 1)}: {_text(each, depth + 1)}" for key, each in few]
    else:
        texts = [_text(each, depth + 1) for each in few]
    more = f", … ({count:,} in all)" if count > len(few) else ""
    left, right = _BRACKETS.get(kind, (f"{kind.__name__}(", ")"))
    last = "," if kind is tuple and count == 1 else ""
    return f"{left}{', '.join(texts)}{last}{more}{right}"


def _tensor(value: torch.Tensor) -> str:
    kind = type(value)
    if not (_is_plain_tensor(value) or kind.__module__.startswith("torch.")):
        return f"an object of {kind.__module__}.{kind.__qualname__} (a tensor)"
    place = "" if value.device.type == "cpu" else f" on {value.device}"
    text = (
        f"{kind.__name__}  {str(value.dtype).removeprefix('torch.')} {shape_text(value.shape)}"
        f"{place}"
    )
    # Numbers on a device come when the work in front of them has ended, perhaps never.
    if not _is_plain_tensor(value) or place or value.layout is not torch.strided:
        return text
    if value.is_quantized or not value.numel():
        return text
    row = value.detach()
    while row.dim() > 1:
        row = row[0]
    numbers = [f"{number:.6g}" for number in row.reshape(-1)[:_MAX_ITEMS].tolist()]
    more = ", …" if value.numel() > len(numbers) else ""
    return f"{text}  {', '.join(numbers)}{more}"
