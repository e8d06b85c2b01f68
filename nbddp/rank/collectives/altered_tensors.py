"""The changes that faults on purpose make: a flipped bit, and the parameter for a NaN.

Runs in: the rank process, any thread.
"""

from typing import Any

import torch


def flip(tensor: torch.Tensor) -> tuple[Any, Any]:
    """Flip a bit of the first element; returns its old and its new value.

    It is the highest bit of a fraction, so a float changes by at most a half, and the lowest bit of
    an integer.
    """
    first = tensor.data[(0,) * tensor.ndim]  # `data` does not count as a change for autograd
    old = first.item()
    kind = tensor.dtype.to_real()
    bit = round(-torch.log2(torch.tensor(torch.finfo(kind).eps)).item()) - 1 if (
        kind.is_floating_point
    ) else 0  # fmt: skip
    changed = first.reshape(1).clone()
    octets = changed.view(torch.uint8)
    octets[bit // 8] ^= 1 << bit % 8
    first.copy_(changed[0])
    return old, first.item()


def first_leaf(outputs: Any) -> torch.Tensor | None:
    """Return the first parameter that a backward comes to."""
    roots = outputs if isinstance(outputs, list | tuple) else (outputs,)
    pending = [getattr(root, "grad_fn", None) or getattr(root, "node", None) for root in roots]
    seen: set[Any] = set()
    while pending:
        node = pending.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.numel():
            return leaf
        pending += [following for following, _ in node.next_functions]
    return None
