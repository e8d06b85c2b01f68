"""Private names of torch stand in `nbddp.rank.torch_private` only."""

import ast
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.nn.parallel import DistributedDataParallel

_FOLDER = Path(__file__).parents[3] / "nbddp"
#: Objects of torch that nbddp holds.
_OWNERS = (
    torch, torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch.utils.data.DataLoader,
    dist, dist.distributed_c10d, dist.ProcessGroup, dist.Work, Store,
    DistributedDataParallel,
)  # fmt: skip
_PRIVATE = {
    name
    for owner in _OWNERS
    for name in dir(owner)
    if name.startswith("_") and not name.startswith("__")
}


def private_uses(source: str) -> Iterator[str]:
    """Yield the private attributes and modules of torch that a module uses.

    A class that stands in for one of torch defines such methods, and may pass them on.
    """
    tree = ast.parse(source)
    defined = {
        name for node in ast.walk(tree) for name in (*_bound_names(node), getattr(node, "name", ""))
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not _is_own(node.value):
            if node.attr in _PRIVATE - defined:
                yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            names = [*(node.module or "").split("."), *(each.name for each in node.names)]
            if any(name.startswith("_") for name in names):
                yield ast.unparse(node)


def _bound_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that an assignment binds: ``_set_group_name = setGroupName``."""
    if isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def test_no_other_package_uses_private_names_of_torch():
    uses = {
        f"{path.relative_to(_FOLDER)}: {use}"
        for path in _FOLDER.rglob("*.py")
        if "torch_private" not in path.parts
        for use in private_uses(path.read_text())
    }
    assert not uses


def test_a_private_name_is_seen():
    assert list(private_uses("kinds = inner._device_types")) == ["inner._device_types"]
    assert list(private_uses("from torch.distributed import _functional_collectives"))
    assert list(private_uses("from torch._utils import _flatten_dense_tensors"))
    assert not list(private_uses("def _device_types(group): return group.inner._device_types"))
    assert not list(private_uses("self._device_types"))
