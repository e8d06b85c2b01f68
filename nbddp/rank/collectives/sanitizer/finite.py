"""NaN and Inf in tensors that are about to be sent, and the parameter whose gradient has them.

Runs in: the rank process, in the thread that calls the operation.
"""

import gc
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import torch

from nbddp.rank import torch_private
from nbddp.rank.collectives.sanitizer.spans import overlap, span_of
from nbddp.rank.torch_private import dispatch_watch

Value: TypeAlias = Literal["", "NaN", "Inf"]
#: Inf is a value like others where it is only moved, and the neutral element of MAX and MIN.
_ADDING = ("SUM", "AVG", "PRODUCT", "PREMUL_SUM")


def not_finite(tensors: Iterable[torch.Tensor], reduce_op: str) -> Value:
    """Return what is wrong with the values of tensors that an operation sends.

    Args:
        tensors: its inputs.
        reduce_op: its reduction; empty: it only moves values.
    """
    for tensor in tensors:
        value = value_of(tensor)
        if value == "NaN" or (value and reduce_op in _ADDING):
            return value
    return ""


def value_of(tensor: torch.Tensor) -> Value:
    """Return NaN or Inf if the tensor has one."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return ""
    if is_captured(tensor):
        return ""
    with torch.no_grad(), dispatch_watch.unseen():
        try:
            values = tensor.detach()
            values = values.float() if values.itemsize == 1 else values  # they have no sum
            values = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
            if math.isfinite(float(values.sum())):  # the sum of finite ones may be infinite
                return ""
            if bool(values.isnan().any()):
                return "NaN"
            return "Inf" if bool(values.isinf().any()) else ""
        except (RuntimeError, NotImplementedError):  # without values: a meta tensor
            return ""


def is_captured(tensor: torch.Tensor) -> bool:
    """Return whether a CUDA graph captures what is done with a tensor now: nothing may be read."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def is_scaled() -> bool:
    """Return whether a `GradScaler` is in use, which finds gradients with Inf by itself."""
    scaler: Any = getattr(sys.modules.get("torch.amp.grad_scaler"), "GradScaler", None)
    return scaler is not None and any(each.is_enabled() for each in _objects(scaler))


def parameter_of(tensors: Sequence[torch.Tensor], *, in_backward: bool) -> str:
    """Return the parameter whose gradient is sent and is not finite, or else nothing.

    Of several, it is the last in the order of the module: a backward pass comes to it first.

    Args:
        tensors: inputs of the operation.
        in_backward: a backward pass has called it; DDP then sends copies of gradients.
    """
    spans = [span for span in map(span_of, tensors) if span is not None]
    models = [model.module for model in torch_private.ddp_models()] if in_backward else []
    for model, is_sent in [
        *((each, True) for each in models),
        *((each, False) for each in root_modules()),
    ]:
        names = [
            name
            for name, parameter in model.named_parameters()
            if type(gradient := torch_private.gradient_of(parameter)) is torch.Tensor
            and (is_sent or _is_in(gradient, spans))
            and value_of(gradient)
        ]
        if names:
            return f"'{names[-1]}' of {type(model).__name__}"
    return ""


def module_of(parameters: Iterable[torch.Tensor]) -> torch.nn.Module | None:
    """Return the module with exactly these parameters; None: there is none, or several."""
    mine = {id(each) for each in parameters}
    modules = [
        module
        for module in root_modules()
        if {id(parameter) for parameter in module.parameters()} == mine
    ]
    return modules[0] if len(modules) == 1 else None


def module_with(parameters: Iterable[torch.Tensor]) -> torch.nn.Module | None:
    """Return the module that has these parameters and others; None: there is none, or several."""
    mine = {id(each) for each in parameters}
    modules = [
        module
        for module in root_modules()
        if mine <= {id(parameter) for parameter in module.parameters()}
    ]
    return modules[0] if len(modules) == 1 else None


def _is_in(gradient: torch.Tensor, spans: Sequence[Any]) -> bool:
    span = span_of(gradient)
    return span is not None and any(overlap(span, each) for each in spans)


def root_modules() -> list[torch.nn.Module]:
    """Return the modules that are not part of others."""
    modules: list[torch.nn.Module] = []
    parts: set[int] = set()
    for module in _objects(torch.nn.Module):
        with suppress(Exception):  # its `__init__` has failed: it lives on in the traceback
            parts.update(map(id, module.children()))
            modules.append(module)
    return [module for module in modules if id(module) not in parts]


def _objects(kind: type[Any]) -> Iterator[Any]:
    return (each for each in gc.get_objects() if issubclass(type(each), kind))
