"""The gradient of a tensor, without torch's warning about tensors that are no leaves.

Runs in: the rank process.
"""

import torch


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient of a tensor; None: it has none.

    A frozen parameter is no leaf any more when code has computed it from others, in place.
    """
    return tensor.grad if tensor.is_leaf or tensor.retains_grad else None
