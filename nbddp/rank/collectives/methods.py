"""The methods of `ProcessGroup`, and the signature of a call of each.

Runs in: the rank process, any thread. Sources: ``torch/csrc/distributed/c10d/ProcessGroup.hpp``,
``PyProcessGroup.hpp`` and ``init.cpp`` of torch 2.13; names that a version lacks are left out.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.rank.collectives.recording.signatures import CallSignature, make, places_of
from nbddp.wire.flight_recorder.matching import IN_MEMORY_ORDER

_Tensors = Sequence[torch.Tensor]


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _all_reduce(
    group: Any, recorder: Recorder, tensors: Any, options: Any = None, *_: Any
) -> CallSignature:
    tensor = tensors[0] if type(tensors) is list or not _is_tensor(tensors) else tensors
    # Reading and comparing a ReduceOp takes 2 us; see `torch_private.hook_options`.
    op = getattr(options, "nbddp_op", None)
    if op is not None:
        number = id(op)
    else:
        op = getattr(options, "reduceOp", options)
        op = getattr(op, "op", op)
        # Its id is no key: C++ returns a new object each time, for example to DDP.
        number = -1 if op is None else int(op)
    # A dense, contiguous tensor on the CPU has the short key that `TracedGroup.allreduce` knows.
    key: tuple[Any, ...] = (number, tensor.dtype, tensor.shape)
    if not tensor.is_contiguous() or not tensor.is_cpu or tensor.layout is not torch.strided:
        backend = group.counters.info.backend
        key = (*key, tensor.device, tensor.layout, tensor.stride(), backend)
    call = recorder.signatures.known.get(key)
    if call is not None:
        return call
    return recorder.signatures.find(
        key,
        lambda: make(
            "collective",
            "all_reduce",
            [tensor],
            reduce_op=op,
            places=places_of([tensor], group.counters.info.backend),
        ),
        keep=op,
    )


def _rooted(group: Any, root: int) -> int:
    """Return the global rank of a rank of the group. Raises IndexError if there is none."""
    ranks: tuple[int, ...] = group.counters.ranks
    return ranks[root] if root >= 0 else ranks[len(ranks)]


def _broadcast(
    group: Any, recorder: Recorder, tensors: Any, options: Any = 0, *_: Any
) -> CallSignature:
    tensor_list = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    root = _rooted(group, int(getattr(options, "rootRank", options)))
    return _signature_of(group, recorder, "broadcast", tensor_list, [], root=root)


def _reduce(
    group: Any, recorder: Recorder, tensors: Any, options: Any = 0, op: Any = None, *_: Any
) -> CallSignature:
    tensor_list = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    root = _rooted(group, int(getattr(options, "rootRank", options)))
    op = getattr(options, "reduceOp", op)
    if group.counters.info.backend == "gloo":
        recorder.has_reduced = True
    return _signature_of(group, recorder, "reduce", tensor_list, [], root=root, reduce_op=op)


def _signature_of(
    group: Any,
    recorder: Recorder,
    name: str,
    inputs: _Tensors,
    outputs: _Tensors,
    *,
    root: int = -1,
    reduce_op: Any = None,
    splits: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
) -> CallSignature:
    backend = group.counters.info.backend
    key: tuple[Any, ...] = (
        name, tuple([(t.dtype, t.shape, t.device, t.layout) for t in inputs]),
        tuple([(t.dtype, t.shape, t.device, t.layout) for t in outputs]), backend, root, reduce_op,
        splits,
    )  # fmt: skip
    if name in IN_MEMORY_ORDER:
        tensors = [*inputs, *outputs]
        if not all(map(torch.Tensor.is_contiguous, tensors)):
            key = (*key, *map(torch.Tensor.stride, tensors))
    call = recorder.signatures.known.get(key)
    if call is not None:
        return call
    if not _is_sound(name, inputs, outputs, group.size()):
        raise ValueError("sizes that do not fit together")
    return recorder.signatures.find(
        key,
        lambda: make(
            "collective",
            name,
            inputs,
            outputs,
            reduce_op=reduce_op,
            root=root,
            output_splits=splits[0],
            input_splits=splits[1],
            places=places_of([*inputs, *outputs], backend),
        ),
    )


def _is_sound(name: str, inputs: _Tensors, outputs: _Tensors, size: int) -> bool:
    """Return whether Gloo may accept the call.

    A call that it refuses must not be compared with calls of other ranks.
    """
    match name:
        case "all_gather" | "gather" | "reduce_scatter" | "scatter":
            one, many = (inputs, outputs) if name.endswith("gather") else (outputs, inputs)
            if name in {"gather", "scatter"} and not many:
                return True  # not the root
            return len(one) == 1 and len(many) == size and _are_alike([*one, *many])
        case "all_to_all":
            return len(inputs) == len(outputs) == size and _are_alike([*inputs, *outputs])
        case "all_gather_into_tensor":
            return outputs[0].numel() == inputs[0].numel() * size
        case "reduce_scatter_tensor":
            whole, part = inputs[0], outputs[0]
            # Gloo compares the first dimensions, too.
            has_rows = whole.device.type == "cpu" and whole.dim() and part.dim()
            fits = part.numel() * size == whole.numel()
            return fits and (not has_rows or part.shape[0] * size == whole.shape[0])
        case _:
            return True


def _are_alike(tensors: _Tensors) -> bool:
    return len({(tensor.dtype, tensor.shape) for tensor in tensors}) == 1


def _flat(tensors: Any) -> list[torch.Tensor]:
    """Return a tensor, a list of tensors, or a list of lists, as one list."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [tensor for part in tensors for tensor in _flat(part)]


def _out_in(name: str) -> Callable[..., CallSignature]:
    """Describe calls of ``(outputs, inputs, options)``, with tensors, lists, or lists of lists."""

    def describe(
        group: Any, recorder: Recorder, outputs: Any, inputs: Any, options: Any = None, *_: Any,
        **__: Any,
    ) -> CallSignature:  # fmt: skip
        reduce_op = getattr(options, "reduceOp", None)
        if reduce_op is None and isinstance(options, dist.ReduceOp | dist.ReduceOp.RedOpType):
            reduce_op = options
        return _signature_of(
            group, recorder, name, _flat(inputs), _flat(outputs), reduce_op=reduce_op
        )

    return describe


def _rooted_out_in(name: str) -> Callable[..., CallSignature]:
    def describe(
        group: Any, recorder: Recorder, outputs: Any, inputs: Any, options: Any = 0, *_: Any,
        **__: Any,
    ) -> CallSignature:  # fmt: skip
        root = _rooted(group, int(getattr(options, "rootRank", options)))
        return _signature_of(group, recorder, name, _flat(inputs), _flat(outputs), root=root)

    return describe


def _all_to_all_single(  # noqa: PLR0917 - as in torch
    group: Any, recorder: Recorder, output: Any, input: Any, output_splits: Any = (),  # noqa: A002 - torch's name
    input_splits: Any = (), *_: Any, **__: Any,
) -> CallSignature:  # fmt: skip
    splits = (tuple(output_splits), tuple(input_splits))
    for tensor, sizes in zip((output, input), splits, strict=True):
        if sizes and sum(sizes) != tensor.shape[0]:
            raise ValueError("splits that do not fit the tensor")
    return _signature_of(group, recorder, "all_to_all_single", [input], [output], splits=splits)


def _all_reduce_coalesced(
    group: Any, recorder: Recorder, tensors: Any, options: Any = None, *_: Any, **__: Any
) -> CallSignature:
    op = getattr(options, "reduceOp", None)
    return _signature_of(group, recorder, "all_reduce_coalesced", list(tensors), [], reduce_op=op)


#: torch's names of the arguments, by their names in the functions above.
_ARGUMENTS = {
    "tensors": ("tensor",),
    "outputs": (
        "output_tensors", "output_tensor", "output_lists", "output", "outputTensor",
    ),
    "inputs": ("input_tensors", "input_tensor", "input_list", "input", "inputTensor"),
    "output_splits": ("output_split_sizes",),
    "input_splits": ("input_split_sizes",),
    "options": ("opts", "root", "op"),
}  # fmt: skip
_OWN_NAME = {theirs: own for own, names in _ARGUMENTS.items() for theirs in names}
_SINGLE = {"outputs": "output", "inputs": "input"}


def renamed(method: str, keywords: dict[str, Any]) -> dict[str, Any]:
    """Rename keyword arguments of a method of `ProcessGroup` for the function that describes it."""
    arguments = {}
    for name, value in keywords.items():
        own = _OWN_NAME.get(name, name)
        if COLLECTIVES[method] is _all_to_all_single:
            own = _SINGLE.get(own, own)
        elif (method, name) == ("reduce", "op"):
            own = name
        if own != "timeout":
            arguments[own] = value
    return arguments


def is_async(args: Sequence[Any], keywords: dict[str, Any]) -> bool:
    """Return whether a method returns a handle before the operation ends, as its options say."""
    options = args[-1] if args and not keywords else keywords.get("opts")
    return bool(getattr(options, "asyncOp", True))


def undescribed(recorder: Recorder, method: str) -> CallSignature:
    """Return the signature of a call with unknown arguments."""
    return recorder.signatures.find(("undescribed", method), lambda: make("collective", method))


def _barrier(group: Any, recorder: Recorder, *_: Any, **__: Any) -> CallSignature:
    return recorder.signatures.find(("barrier",), lambda: make("collective", "barrier"))


def monitored_barrier(recorder: Recorder) -> CallSignature:
    """Return the signature of a monitored_barrier."""
    return recorder.signatures.find(
        ("monitored_barrier",), lambda: make("collective", "monitored_barrier")
    )


def message(group: Any, recorder: Recorder, direction: str, tensors: _Tensors) -> CallSignature:
    """Return the signature of a message."""
    tensor = tensors[0]
    backend = group.counters.info.backend
    key = (direction, tensor.dtype, tensor.shape, tensor.device, tensor.layout, backend)
    call = recorder.signatures.known.get(key)
    if call is not None:
        return call
    kind = "send" if direction == "send" else "recv"
    return recorder.signatures.find(
        key,
        lambda: make(kind, kind, list(tensors), places=places_of(tensors, backend)),  # type: ignore[arg-type]  # one of two
    )


#: By method; some have several names, because torch has renamed them over time.
COLLECTIVES: dict[str, Callable[..., CallSignature]] = {
    "allreduce": _all_reduce,
    "allreduce_coalesced": _all_reduce_coalesced,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "allgather": _out_in("all_gather"),
    "allgather_coalesced": _out_in("all_gather_coalesced"),
    "_allgather_base": _out_in("all_gather_into_tensor"),
    "all_gather_single": _out_in("all_gather_into_tensor"),
    "allgather_into_tensor_coalesced": _out_in("all_gather_into_tensor_coalesced"),
    "all_gather_single_coalesced": _out_in("all_gather_into_tensor_coalesced"),
    "reduce_scatter": _out_in("reduce_scatter"),
    "_reduce_scatter_base": _out_in("reduce_scatter_tensor"),
    "reduce_scatter_single": _out_in("reduce_scatter_tensor"),
    "reduce_scatter_tensor_coalesced": _out_in("reduce_scatter_tensor_coalesced"),
    "reduce_scatter_single_coalesced": _out_in("reduce_scatter_tensor_coalesced"),
    "alltoall": _out_in("all_to_all"),
    "alltoall_base": _all_to_all_single,
    "all_to_all_single": _all_to_all_single,
    "gather": _rooted_out_in("gather"),
    "scatter": _rooted_out_in("scatter"),
    "barrier": _barrier,
}

MESSAGES = {"send": "send", "recv": "recv", "recv_anysource": "recv"}

#: Methods that the stock group inside answers.
OF_INNER = (
    "name", "_get_backend", "_get_backend_name", "_backend_id", "_get_sequence_number_for_group",
    "_set_sequence_number_for_group", "_has_hooks", "_wait_for_pending_works",
    "_register_on_completion_hook", "_enable_collectives_timing", "_start_coalescing",
    "_end_coalescing", "get_group_store", "split_group", "merge_remote_group",
    "_register_backend", "_set_default_backend",
)  # fmt: skip
#: The methods among these that all members call.
BY_ALL = ("_start_coalescing", "split_group", "merge_remote_group")
