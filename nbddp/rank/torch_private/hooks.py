"""Private names of torch at which nbddp wraps a function of torch.

Runs in: the rank process.
"""

import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.distributed_c10d import Store
from torch.utils._python_dispatch import _disable_current_modes

from nbddp.rank.torch_private.process_groups import c10d, default_group

#: `Store.wait` of torch, without wrappers.
original_store_wait = Store.wait


def hook_batched_messages(group_type: type) -> None:
    """Let NCCL join messages of ``batch_isend_irecv``, which checks the exact type of a group."""
    original = c10d.batch_isend_irecv
    manager: Any = getattr(c10d, "_coalescing_manager", None)

    def batch_isend_irecv(p2p_op_list: Any) -> Any:
        group = getattr(p2p_op_list[0], "group", None) if p2p_op_list else None
        group = group or default_group()
        device = getattr(getattr(p2p_op_list[0], "tensor", None), "device", None)
        joins = manager is not None and isinstance(group, group_type) and device is not None
        if not joins or not group._get_backend(device).supports_coalescing:
            return original(p2p_op_list)
        c10d._check_p2p_op_list(p2p_op_list)
        with manager(group, device, async_ops=True) as joined:
            for op in p2p_op_list:
                key = "group_dst" if op.op is c10d.isend else "group_src"
                op.op(op.tensor, group=op.group, tag=op.tag, **{key: op.group_peer})
        return joined.works

    batch_isend_irecv.__doc__ = original.__doc__
    c10d.batch_isend_irecv = torch.distributed.batch_isend_irecv = batch_isend_irecv


def hook_options() -> None:
    """Let options of collectives keep values in Python, because reading them from C++ is slow.

    Reading a ReduceOp takes 2 us, and ``asyncOp`` half of one. ``asyncOp`` is not even passed to
    C++: only NCCL reads it, see `set_synchronous`.
    """
    for name in _OPTIONS:
        base = getattr(c10d, name, None)
        if base is None or not hasattr(base, "asyncOp"):
            continue
        fields: dict[str, Any] = {"__slots__": ("asyncOp",)}
        if base is c10d.AllreduceOptions:
            stock = vars(base)["reduceOp"]

            def set_op(self: Any, op: Any, set_stock: Any = stock.fset) -> None:
                set_stock(self, op)
                self.nbddp_op = op

            fields["__slots__"] = ("asyncOp", "nbddp_op")
            fields["reduceOp"] = property(stock.fget, set_op)
        setattr(c10d, name, type(base)(name, (base,), fields))


_OPTIONS = (
    "AllreduceOptions", "AllreduceCoalescedOptions", "BroadcastOptions", "ReduceOptions",
    "AllgatherOptions", "GatherOptions", "ScatterOptions", "ReduceScatterOptions",
    "AllToAllOptions", "BarrierOptions",
)  # fmt: skip


def set_synchronous(options: Any) -> None:
    """Pass ``asyncOp = False`` to C++, which `hook_options` keeps in Python only."""
    for kind in type(options).__mro__[1:]:
        stock = vars(kind).get("asyncOp")
        if stock is not None:
            stock.__set__(options, False)
            return


#: `dist.send` and `dist.recv` call `isend` and `irecv`, and wait for the end of what these give.
_AWAITED = tuple(inspect.unwrap(function).__code__ for function in (c10d.send, c10d.recv))


def is_awaited_message(frame: types.FrameType | None) -> bool:
    """Return whether torch waits at once for the end of a group's ``send`` or ``recv``.

    Args:
        frame: frame of that method.
    """
    for _ in range(2):
        frame = None if frame is None else frame.f_back
        if frame is not None and frame.f_code in _AWAITED:
            return True
    return False


def hook_store_waits(wait: Callable[[Callable[..., Any], Any, list[str], Any], Any]) -> None:
    """Let `Store.wait` and `Store.get` call ``wait(original, store, keys, timeout)``."""
    original_wait, original_get = Store.wait, Store.get

    def traced_wait(self: Any, keys: Any, timeout: Any = None) -> None:
        wait(original_wait, self, list(keys), timeout)

    def traced_get(self: Any, key: str) -> Any:
        if not original_check(self, [key]):
            wait(original_wait, self, [key], None)
        return original_get(self, key)

    original_check = Store.check
    Store.wait, Store.get = traced_wait, traced_get  # type: ignore[method-assign]


def hook_backward(run: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Let ``run`` wrap the function that starts autograd's engine."""
    graph = sys.modules.get("torch.autograd.graph")
    original = getattr(graph, "_engine_run_backward", None)
    if original is None:
        return
    wrapped = run(original)
    for module in (graph, torch.autograd):
        if hasattr(module, "_engine_run_backward"):
            module._engine_run_backward = wrapped  # type: ignore[union-attr]


def hook_builtin_comm_hooks(note: Callable[[], None]) -> None:
    """Call ``note`` when a model gets the hook of C++ that sends gradients in half precision."""
    package: Any = torch.distributed
    original = getattr(package, "_register_builtin_comm_hook", None)
    if original is None:
        return

    def register(reducer: Any, comm_hook_type: Any) -> None:
        if comm_hook_type == package.BuiltinCommHookType.FP16_COMPRESS:
            note()
        original(reducer, comm_hook_type)

    package._register_builtin_comm_hook = register


def hook_timeouts(note: Callable[[Any, timedelta], None]) -> None:
    """Call ``note(group, timeout)`` after ``_set_pg_timeout``, which informs backends only."""
    original = getattr(c10d, "_set_pg_timeout", None)
    if original is None:
        return

    @functools.wraps(original)
    def set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
        original(timeout, group)
        note(group or default_group(), timeout)

    c10d._set_pg_timeout = set_pg_timeout


def hook_join() -> None:
    """Keep the works that ``Join`` gives to DDP, whose C++ side uses them after Python does."""
    join = getattr(sys.modules.get("torch.distributed.algorithms.join"), "Join", None)
    original = getattr(join, "notify_join_context", None)
    if join is None or original is None:
        return
    last_works: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def notify_join_context(joinable: Any) -> Any:
        work = last_works[joinable] = original(joinable)
        return work

    join.notify_join_context = staticmethod(notify_join_context)


def hide_from_compiler(package: str) -> None:
    """Make ``torch.compile`` run the functions of a package unchanged, like torch's own."""
    dynamo: Any = getattr(torch._C, "_dynamo", None)
    frames = getattr(dynamo, "eval_frame", None)
    set_strategy = getattr(frames, "set_code_exec_strategy", None)
    if frames is None or set_strategy is None:
        return
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
    for name, module in list(sys.modules.items()):
        if name.startswith(package):
            for function in _functions(module):
                function._torchdynamo_disable = True  # type: ignore[attr-defined]  # see dynamo
                for code in _codes(function):
                    set_strategy(code, skip)


def _functions(module: types.ModuleType) -> Iterator[types.FunctionType]:
    """Yield the functions that a module defines, except those inside other functions."""
    owners = [module, *(member for member in vars(module).values() if isinstance(member, type))]
    for owner in owners:
        for member in list(vars(owner).values()):
            function = getattr(member, "fget", member)
            if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
                yield function


def _codes(function: types.FunctionType) -> Iterator[types.CodeType]:
    """Yield the code objects of a function, and of the functions inside it."""
    pending = [function.__code__]
    while pending:
        code = pending.pop()
        yield code
        pending += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]


#: Functions of torch below which a thread waits for operations in C++: file, name.
BLOCKING_FUNCTIONS = (
    ("torch/autograd/graph.py", "_engine_run_backward"),
    ("torch/futures/__init__.py", "wait"),
    ("torch/nn/parallel/distributed.py", "forward"),
)


def is_bad_argument(error: BaseException) -> bool:
    """Return whether a call of a group failed because of its arguments, not in communication."""
    if not isinstance(error, Exception) or isinstance(error, torch.distributed.DistError):
        return False
    # A wrapper for debugging names missing ranks in a barrier of its own.
    text = str(error)
    return "gloo/transport" not in text and "monitoredBarrier" not in text


def is_wrapped(group: Any) -> bool:
    """Return whether torch compares ranks in each call (``TORCH_DISTRIBUTED_DEBUG=DETAIL``)."""
    wrapper = getattr(c10d, "_ProcessGroupWrapper", None)
    backends = []
    for device in group._device_types:
        with suppress(RuntimeError):
            backends.append(group._get_backend(device))
    return wrapper is not None and any(isinstance(backend, wrapper) for backend in backends)


def nccl_backends(group: Any) -> list[Any]:
    """Return the NCCL backends of a stock group."""
    backends = []
    for device in group._device_types:
        with suppress(RuntimeError):
            backend = group._get_backend(device)
            if "nccl" in type(backend).__name__.lower():
                backends.append(backend)
    return backends


def done_work(tensors: Sequence[torch.Tensor]) -> Any:
    """Return a work that has ended, with these tensors as its result."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(list(tensors))
    return torch._C._distributed_c10d._create_work_from_future(future)  # type: ignore[attr-defined]


def unobserved() -> AbstractContextManager[object]:
    """Return a context in which no dispatch mode of the user sees what is called."""
    return _disable_current_modes()
