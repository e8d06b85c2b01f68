"""Private names of torch at which nbddp wraps a function of torch.

Runs in: the rank process.
"""

import functools
import inspect
import os
import sys
import types
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed.distributed_c10d import Store

import nbddp
from nbddp.rank.torch_private.process_groups import c10d, default_group
from nbddp.wire.flight_recorder import StoreQuestion

#: Methods of a store that `slow_store` slows; `Store.check` asks without waiting.
_STORE_CALLS = (
    "get", "set", "add", "append", "wait", "compare_set", "delete_key", "multi_get", "multi_set",
)  # fmt: skip
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


_DISTRIBUTED_FILES = tuple({c10d.__file__, c10d.all_reduce.__code__.co_filename})


def is_distributed_code(code: types.CodeType) -> bool:
    """Return whether a function is one of `torch.distributed`, or a wrapper around one."""
    return code.co_filename in _DISTRIBUTED_FILES


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


def slow_store(pause: Callable[[], None]) -> Callable[[], None]:
    """Call ``pause`` before each operation of any store; returns a function that undoes it."""
    originals = {name: getattr(Store, name) for name in _STORE_CALLS if hasattr(Store, name)}

    def paused(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            pause()
            return original(*args, **kwargs)

        return call

    def undo() -> None:
        for name, original in originals.items():
            setattr(Store, name, original)

    for name, original in originals.items():
        setattr(Store, name, paused(original))
    return undo


def hook_store_questions(
    note_key: Callable[[str], None], note_answer: Callable[[StoreQuestion, str, Hashable], None]
) -> None:
    """Note keys that the user's code sets, and what the store answers it; after `hook_store_waits`.

    ``add(key, 0)`` is a question. Calls of torch's code, and of nbddp's, are not noted.
    """
    check, get, put, add = Store.check, Store.get, Store.set, Store.add

    def is_user() -> bool:
        return not sys._getframe(2).f_code.co_filename.startswith(_LIBRARY_FOLDERS)

    def noted_check(self: Any, keys: Any) -> bool:
        are_set = check(self, keys)
        if is_user():
            note_answer("store.check", ", ".join(map(str, keys)), are_set)
        return are_set

    def noted_get(self: Any, key: str) -> Any:
        value = get(self, key)
        if is_user():
            note_answer("store.get", key, hash(value))
        return value

    def noted_set(self: Any, key: str, *value: Any) -> None:
        put(self, key, *value)
        if is_user():
            note_key(key)

    def noted_add(self: Any, key: str, amount: int) -> int:
        total = add(self, key, amount)
        if is_user():
            note_key(key) if amount else note_answer("store.add", key, total)
        return total

    store: Any = Store
    store.check, store.get, store.set, store.add = noted_check, noted_get, noted_set, noted_add


#: The code of torch and of nbddp.
_LIBRARY_FOLDERS = tuple(
    f"{Path(file).parent}{os.sep}" for file in (torch.__file__, nbddp.__file__)
)


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
    """Keep the works that ``Join`` gives to DDP, whose C++ side uses them after Python does.

    A ``with`` of ``Join`` also leaves its models as it found them. In torch they go on to announce
    each forward, so a rank that has left such a block, and one that an error has kept from it, call
    different collectives in a later loop without ``Join``.
    """
    join = getattr(sys.modules.get("torch.distributed.algorithms.join"), "Join", None)
    original = getattr(join, "notify_join_context", None)
    if join is None or original is None:
        return
    last_works: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
    make, leave = join.__init__, join.__exit__

    def notify_join_context(joinable: Any) -> Any:
        work = last_works[joinable] = original(joinable)
        return work

    @functools.wraps(make)
    def init(self: Any, joinables: Any, *args: Any, **kwargs: Any) -> None:
        before = [(each, getattr(each, "_join_config", None)) for each in joinables]
        make(self, joinables, *args, **kwargs)
        self._nbddp_before = before

    @functools.wraps(leave)
    def exit_(self: Any, *error: Any) -> None:
        try:
            leave(self, *error)
        finally:
            for joinable, config in getattr(self, "_nbddp_before", ()):
                joinable._join_config = config
                reducer, work = getattr(joinable, "reducer", None), last_works.get(joinable)
                if reducer is not None and work is not None:
                    # Or it would divide gradients by the number of ranks of the last forward.
                    reducer._set_forward_pass_work_handle(work, True)

    join.notify_join_context = staticmethod(notify_join_context)
    join.__init__, join.__exit__ = init, exit_


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


def supported_device(group: Any) -> torch.device:
    """Return a device whose tensors a stock group supports: the CPU, if it does."""
    if any(device.type == "cpu" for device in group._device_types):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def nccl_backends(group: Any) -> list[Any]:
    """Return the NCCL backends of a stock group."""
    backends = []
    for device in group._device_types:
        with suppress(RuntimeError):
            backend = group._get_backend(device)
            if "nccl" in type(backend).__name__.lower():
                backends.append(backend)
    return backends
