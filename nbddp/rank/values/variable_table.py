"""Describes the user's variables on this rank, each in a few words.

Runs in: the rank process, main thread, between cells; `DescribeValue` calls it, like
`nbddp.rank.values.fingerprints`.
"""

import inspect
import math
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from nbddp.rank.cells import CODE_TYPES, RankShell
from nbddp.rank.collectives import state_sync
from nbddp.rank.values import plain_values, tensor_hash, torch_objects
from nbddp.rank.values.fingerprints import MAX_LEAVES, Fingerprints, local_of
from nbddp.rank.values.joint_values import joint_names
from nbddp.rank.values.tensor_preview import dtype_text, number_text
from nbddp.rank.values.traversal import Outline, as_tensor, text_of, walk
from nbddp.wire.values.preview_text import shape_text
from nbddp.wire.values.value_questions import NameKind, Names, Variable, Variables

#: A request without names gets this many of the newest variables.
_MAX_NAMES = 60
_MAX_TEXT = 60
_MAX_NUMBERS = 4
#: The mean of more elements is not computed.
_MAX_MEAN = 64 * 1024 * 1024


def variables(shell: RankShell, wanted: Sequence[str]) -> Variables:
    """Describe the user's variables.

    Args:
        shell: has the user's namespace.
        wanted: names of variables; unknown ones are left out. Empty: all variables with data.
    """
    names: dict[str, Any] = shell.user_ns
    left_out = 0
    if not wanted:
        wanted = [name for name, value in _of_user(shell).items() if _has_data(value)]
        left_out = max(0, len(wanted) - _MAX_NAMES)
        wanted = wanted[left_out:]
    described = tuple(_describe(shell.rank, name, names[name]) for name in wanted if name in names)
    return Variables(variables=described, left_out=left_out)


def names(shell: RankShell) -> Names:
    """List the user's names, with the kinds of their values."""
    values = _of_user(shell)
    kinds = {name: _kind(value) for name, value in values.items()}
    return Names(kind_by_name=kinds, joint=joint_names(values))


def _of_user(shell: RankShell) -> dict[str, Any]:
    """Return the names that the user has bound, with their values."""
    hidden = {**shell.user_ns_hidden, **shell.predefined}  # %reset empties the first
    return {
        name: value
        for name, value in shell.user_ns.items()
        if not name.startswith("_")
        # As in %who: a predefined name that the user has bound again is the user's.
        and not (name in hidden and hidden[name] is value)
    }


def _kind(value: Any) -> NameKind:
    if not _has_data(value):
        return "definition"
    try:
        if state_sync.has_state(value):
            return "state"
        return "plain" if plain_values.is_plain(value) else "data"
    except (Exception, SystemExit):  # noqa: BLE001 - of the user's class
        return "data"


def _has_data(value: Any) -> bool:
    try:
        return not isinstance(value, CODE_TYPES)
    except Exception:  # noqa: BLE001 - `__class__` of the user's class
        return True


def _describe(rank: int, name: str, value: Any) -> Variable:
    fingerprints = Fingerprints(rank)
    try:
        if isinstance(value, torch.Tensor):
            return _tensor(name, value, fingerprints)
        digest, sharding = _compared(value, fingerprints)
        dtype, device = _dtype_and_device(value)
        return Variable(
            name=name,
            type=torch_objects.type_name(value),
            shape=_size_text(value),
            dtype=dtype,
            device=device,
            value=_cut(_value_text(value)),
            sharding=sharding,
            digest=digest,
        )
    except (Exception, SystemExit) as error:  # noqa: BLE001 - of the user's class: others follow
        return Variable(
            name=name, type=type(value).__name__, value=_cut(f"{type(error).__name__}: {error}")
        )


def _compared(value: Any, fingerprints: Fingerprints) -> tuple[str, str]:
    """Return a fingerprint of the parts that should be equal on all ranks, and the sharding."""
    parts: list[bytes] = []
    shardings: dict[str, None] = {}
    outline = Outline()
    for number, (path, part) in enumerate(walk(value, outline)):
        if number == MAX_LEAVES:
            return "", ""
        leaf = fingerprints.leaf_of(path, part)
        parts += [path.encode(), leaf.what.encode(), leaf.sharding.encode()]
        if not leaf.digest and (leaf.is_tensor or not path):
            return "", ""  # a part that cannot be compared, such as a lock, is left out
        if leaf.part:
            shardings[leaf.sharding] = None
        else:
            parts.append(leaf.digest.encode())
    parts.append(outline.text().encode())
    return tensor_hash.joined(parts).hex(), "; ".join(shardings)


def _tensor(name: str, value: torch.Tensor, fingerprints: Fingerprints) -> Variable:
    local, part, sharding = local_of(value)
    leaf = fingerprints.leaf_of("", value)
    digest = leaf.digest
    if part:  # other ranks have other elements
        digest = tensor_hash.joined([leaf.what.encode(), sharding.encode()]).hex()
    return Variable(
        name=name,
        type=type(value).__name__,
        shape=shape_text(value.shape),
        dtype=dtype_text(value.dtype),
        device=str(local.device),
        value=f"this rank has {shape_text(local.shape)}" if part else _numbers(local),
        sharding=sharding if part else "",
        digest=digest,
    )


def _numbers(tensor: torch.Tensor) -> str:  # noqa: PLR0911 - one for each kind of tensor
    if tensor.device.type == "meta" or tensor.layout is not torch.strided or not tensor.numel():
        return ""
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.numel() <= _MAX_NUMBERS:
        wide = tensor.to(torch.float64) if tensor.is_floating_point() else tensor
        texts = [number_text(value) for value in wide.reshape(-1).tolist()]
        return texts[0] if tensor.dim() == 0 else f"[{', '.join(texts)}]"
    if tensor.numel() > _MAX_MEAN or tensor.is_complex():
        return ""
    if tensor.dtype is torch.bool:
        return f"{int(tensor.sum())} of {tensor.numel()} true"
    if not tensor.is_floating_point():
        return f"from {int(tensor.min())} to {int(tensor.max())}"
    if tensor.itemsize == 1:
        return ""  # torch has no arithmetic for float8
    mean = tensor.mean(dtype=torch.float64).item()
    return f"mean {mean:.3g}, from {float(tensor.min()):.3g} to {float(tensor.max()):.3g}"


def _size_text(value: Any) -> str:
    if isinstance(value, torch.nn.Module):
        count = sum(parameter.numel() for parameter in value.parameters())
        return f"{count:,} parameters"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and type(value).__module__ == "numpy":
        return shape_text(shape)
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return f"{len(value)} {'item' if len(value) == 1 else 'items'}"
    return ""


def _dtype_and_device(value: Any) -> tuple[str, str]:
    """Return dtype and device of the parameters of a module, or of a NumPy array."""
    if isinstance(value, torch.nn.Module):
        parameters = list(value.parameters())
        dtypes = dict.fromkeys(dtype_text(parameter.dtype) for parameter in parameters)
        devices = dict.fromkeys(str(parameter.device) for parameter in parameters)
        return ", ".join(list(dtypes)[:3]), ", ".join(list(devices)[:3])
    if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
        return str(value.dtype), ""
    return "", ""


def _value_text(value: Any) -> str:  # noqa: PLR0911 - one for each kind of value
    if isinstance(value, torch.nn.Module):
        inner = getattr(value, "module", None)
        of = f"of {type(inner).__name__}, " if isinstance(inner, torch.nn.Module) else ""
        return of + ("train" if value.training else "eval")
    if isinstance(value, torch.optim.Optimizer):
        rates = dict.fromkeys(group.get("lr") for group in value.param_groups)
        return f"lr {', '.join(f'{float(rate):.3g}' for rate in rates if rate is not None)}"
    if (array := as_tensor(value)) is not None:
        return _numbers(array)
    if text := torch_objects.text_of(value):
        return text
    if torch_objects.is_no_member(value):
        return f"{value} (no member)"
    if isinstance(value, Mapping):
        return _listed([repr(key) for key in list(value)[:6]], len(value))
    if isinstance(value, list | tuple | set | frozenset):
        few = list(value)[:6]
        if all(isinstance(item, int | float | str | None) for item in few):
            return _listed([_plain_text(item) for item in few], len(value))
        kinds = dict.fromkeys(type(item).__name__ for item in value)
        return f"of {', '.join(list(kinds)[:4])}"
    if isinstance(value, types.FunctionType):
        return f"{value.__name__}{inspect.signature(value)}"
    if isinstance(value, type | types.ModuleType):
        return value.__name__
    says_nothing = getattr(type(value), "__repr__", None) is object.__repr__
    if says_nothing and getattr(value, "__dict__", None):
        return _listed(list(vars(value))[:6], len(vars(value)))
    return _plain_text(value)


def _plain_text(value: Any) -> str:
    """The text of a leaf; a float has about six digits, since ranks are compared by their digests.

    >>> _plain_text(0.1 * 3), _plain_text(0.25), _plain_text(1234567.891)
    ('0.3', '0.25', '1234567.89')
    """
    if not isinstance(value, float) or not math.isfinite(value):
        return text_of(value)
    whole_digits = len(str(abs(int(value))))
    return min(text_of(value), f"{value:.{max(6, whole_digits + 2)}g}", key=len)


def _listed(texts: Sequence[str], count: int) -> str:
    return ", ".join(texts) + (", …" if count > len(texts) else "")


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
