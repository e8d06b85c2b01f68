"""Faults on purpose without traced groups: in scripts of torchrun, and in pools with ``--plain``.

Runs in: the rank process. Stock groups are used from C++, too, so only calls of functions of
``torch.distributed`` are seen; they are replaced while a fault may strike before an operation.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import torch
import torch.distributed as dist

from nbddp.rank import torch_private
from nbddp.rank.collectives import fault_strikes
from nbddp.rank.collectives.recording.call_sites import Sites
from nbddp.rank.collectives.rollback import tensors_in
from nbddp.rank.collectives.work import SkippedWork
from nbddp.wire.fault_grammar import OPERATIONS
from nbddp.wire.fault_types import ON_PURPOSE
from nbddp.wire.flight_recorder import GroupInfo, OperationKind, Signature

#: Functions with another name than their operation.
_MESSAGES: Final = {"isend": "send", "irecv": "recv"}
_KINDS: Final[dict[str, OperationKind]] = {"send": "send", "recv": "recv"}
#: Parameters with what a rank sends, the first that is given.
_SENT: Final = ("input_tensor_list", "input_tensor", "input_list", "input", "tensors", "tensor")


class _StockGroup:
    """The facts about a group that faults need."""

    ended = None
    seq = -1  #: operations have no numbers here

    def __init__(self, group: Any) -> None:
        ranks = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
        self.info = GroupInfo.of(pg_id="", name="", ranks=ranks)


class StockRanks:
    """Stands for the recorder and the factory of traced groups."""

    def __init__(self) -> None:
        packages = Path(torch.__file__).parents[1]
        machinery = tuple(f"{packages / name}{os.sep}" for name in ("torch", "IPython"))
        self.rank = int(os.environ["RANK"])
        self.sites = Sites(lambda file: 0, cast("Any", None), machinery)  # nothing is recorded
        self.inject: Callable[..., bool] | None = None
        self.before_backward: Callable[[Any], None] | None = None
        self._originals: dict[str, Any] = {}
        self._has_backward = False

    def set_careful(self) -> None:
        """Replace torch's functions while a fault may strike before an operation."""
        module: Any = torch_private.c10d
        for name in () if self._originals or self.inject is None else (*OPERATIONS, *_MESSAGES):
            original = getattr(module, name, None)
            if original is not None:
                self._originals[name] = original
                self._put(name, self._wrapped(_MESSAGES.get(name, name), original))
        if self.inject is None:
            for name, original in self._originals.items():
                self._put(name, original)
            self._originals = {}
        if not self._has_backward:
            self._has_backward = True
            torch_private.hook_backward(self._wrap_backward)

    @staticmethod
    def _put(name: str, function: Any) -> None:
        setattr(torch_private.c10d, name, function)
        setattr(dist, name, function)

    def _wrapped(self, op: str, original: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                given = parameters.bind(*args, **kwargs).arguments
            except TypeError:
                return original(*args, **kwargs)  # which says what is wrong
            group = given.get("group")
            is_member = group is not dist.GroupMember.NON_GROUP_MEMBER
            if self.inject is None or not is_member or not dist.is_initialized():
                return original(*args, **kwargs)
            sent = list(tensors_in(_sent(op, given)))
            signature = Signature(
                kind=_KINDS.get(op, "collective"),
                op=op,
                nbytes=sum(tensor.nbytes for tensor in sent),
            )
            peer = given.get("dst", given.get("src"))
            stock = _StockGroup(group)
            if not self.inject(stock, signature, sent, -1 if peer is None else peer, 0):
                return original(*args, **kwargs)
            is_async = given.get("async_op") or original.__name__ in _MESSAGES
            return SkippedWork(sent) if is_async else None

        return call

    def _wrap_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if self.before_backward is not None:
                self.before_backward(args[0])
            return original(*args, **kwargs)

        return run


def _sent(op: str, given: dict[str, Any]) -> Any:
    """Return what a rank sends in a call: a tensor, a list of them, or None."""
    if op in ("scatter", "recv"):
        return given.get("scatter_list")
    if op == "broadcast" and dist.get_rank() != _root(given):
        return None
    return next((given[name] for name in _SENT if given.get(name) is not None), None)


def _root(given: dict[str, Any]) -> int:
    """Return the global rank of the root of a call."""
    if given.get("src") is not None:
        return int(given["src"])
    group: Any = given.get("group") or dist.GroupMember.WORLD
    return dist.get_global_rank(group, int(given["group_src"]))


def faults_of_process() -> fault_strikes.Faults:
    """Return the faults of this rank: those of its traced groups, or of stock ones."""
    if fault_strikes.current is None:
        stock = StockRanks()
        fault_strikes.current = fault_strikes.Faults(stock, stock)
        fault_strikes.current.tell = _tell
    return fault_strikes.current


def _tell(number: int, text: str) -> None:
    print(f"{ON_PURPOSE}: {text}", file=sys.stderr, flush=True)  # noqa: T201 - of the program
