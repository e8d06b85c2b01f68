"""Changes of loops that have fewer iterations on some ranks, after which all ranks go on together.

Runs in: the notebook's process. Pure. Three changes are known:

    drop_last=True    of a ``DataLoader``, where the code shows that the ranks differ by an
                      incomplete batch only. A ``DistributedSampler`` gives all ranks equally much.
    shortest          of lists: all ranks take as many items as the rank with the fewest has
    model.join()      around a loop that trains a ``DistributedDataParallel`` module and calls no
                      collective itself; ``Join([a, b])`` if it trains several, one after another
"""

import ast
from collections.abc import Sequence

from nbddp.controller.diagnosis.code_places import (
    INDENTATION,
    called,
    communicates,
    has_long_text,
    lines_of,
    shifted,
    unwrapped,
)
from nbddp.controller.diagnosis.control_flow import Code, Sources
from nbddp.controller.diagnosis.definitions import Scope, resolved
from nbddp.controller.diagnosis.divergence import Divergence
from nbddp.controller.diagnosis.joined_models import training_order
from nbddp.controller.diagnosis.loop_lengths import loop_of
from nbddp.controller.diagnosis.rank_conditions import number
from nbddp.controller.diagnosis.report import ChangedLine, CodeChange

#: A longer loop is not shown twice.
_MAX_LOOP = 12
_SHORTEST = "shortest"
#: Functions whose first argument is the first dimension, or all of them, of a tensor.
_TENSORS = ("ones", "zeros", "rand", "randn", "empty")
#: These call collectives that a rank which has joined does not.
_OWN_COLLECTIVES = ("SyncBatchNorm", "ZeroRedundancyOptimizer")
_IMPORT_JOIN = "from torch.distributed.algorithms import Join"
#: Options of DistributedDataParallel with which several models can be joined.
_JOINED_OPTIONS = (
    *("device_ids", "output_device", "broadcast_buffers", "find_unused_parameters"),
    *("bucket_cap_mb", "gradient_as_bucket_view"),
)


def even_loop(divergence: Divergence, sources: Sources, world_size: int) -> CodeChange | None:
    """Let a loop end on all ranks together.

    Args:
        divergence: a line in a loop that had fewer iterations on some ranks.
        sources: the code.
        world_size: the number of ranks of the pool.

    Returns:
        The change; None: none is known.
    """
    if divergence.branches or divergence.exits or divergence.is_extra:
        return None
    if divergence.left_out is not None:
        return None
    loop = loop_of(divergence)
    if loop is None:
        return None
    scope = Scope(divergence.site, divergence.code, sources)
    return _whole_batches(loop, scope, world_size) or _joined(loop, scope) or _shortest(loop, scope)


def _change(scope: Scope, lines: Sequence[ChangedLine]) -> CodeChange:
    return CodeChange(scope.site.cell, scope.site.file, tuple(lines))


# --- drop_last -----------------------------------------------------------------------------------


def _whole_batches(loop: ast.For, scope: Scope, world_size: int) -> CodeChange | None:
    """Add ``drop_last=True`` to the data loader of a loop."""
    definition = resolved(unwrapped(loop.iter), scope)
    loader = definition.value
    if not isinstance(loader, ast.Call) or called(loader) != "DataLoader" or not loader.args:
        return None
    options = {keyword.arg: keyword.value for keyword in loader.keywords}
    if not {"sampler", "batch_sampler", "drop_last", None}.isdisjoint(options):
        return None
    size = options.get("batch_size") or (loader.args[1] if len(loader.args) == 2 else None)
    if size is None or len(loader.args) > 2:
        return None
    batch = number(resolved(size, definition.scope).value, 0, world_size) or 0
    if batch < 2 or not _differ_by_a_part(loader.args[0], definition.scope, batch, world_size):
        return None
    last = max((*loader.args, *options.values()), key=lambda node: (node.lineno, node.col_offset))
    return _with_argument(definition.scope, last, "drop_last=True")


def _differ_by_a_part(data: ast.expr, scope: Scope, batch: int, world_size: int) -> bool:
    """Whether the data of all ranks has equally many whole batches, and differs in length."""
    definition = resolved(data, scope)
    lengths = {
        _length(definition.value, definition.scope, rank, world_size) for rank in range(world_size)
    }
    if None not in lengths:
        known = [length for length in lengths if length is not None]
        all_batches, whole = {-(-n // batch) for n in known}, {n // batch for n in known}
        return len(all_batches) > 1 and len(whole) == 1 and min(whole) > 0
    return _is_strided(definition.value, world_size)


def _length(  # noqa: PLR0911 - one for each kind of data
    node: ast.expr, scope: Scope, rank: int, world_size: int
) -> int | None:
    """The length of data on a rank; None: that is not known."""
    value = resolved(node, scope)
    if value.value is not node:
        return _length(value.value, value.scope, rank, world_size)
    match node:
        case ast.Call(args=[size]) if called(node) in ("arange", "range"):
            return number(size, rank, world_size)
        case ast.Call(args=[size, *_]) if called(node) in _TENSORS:
            first = size.elts[0] if isinstance(size, ast.Tuple) and size.elts else size
            return number(first, rank, world_size)
        case ast.Call(args=[data, *_]) if called(node) == "TensorDataset":
            return _length(data, scope, rank, world_size)
        case ast.Subscript(value=data, slice=ast.Slice(lower=lower, upper=None, step=step)):
            whole = _length(data, scope, rank, world_size)
            begin = 0 if lower is None else number(lower, rank, world_size)
            stride = 1 if step is None else number(step, rank, world_size)
            if whole is None or begin is None or not stride:
                return None
            return len(range(whole)[begin::stride])
        case _:
            return None


def _is_strided(node: ast.expr, world_size: int) -> bool:
    """Whether each rank takes every n-th item: the lengths differ by one."""
    match node:
        case ast.Subscript(slice=ast.Slice(lower=ast.expr() as first, upper=None, step=step)):
            pass
        case ast.Call(args=[_, ast.Call(args=[first, _, step]) as indices]):
            if (called(node), called(indices)) != ("Subset", "range"):
                return False
        case _:
            return False
    return step is not None and all(
        (number(first, rank, world_size), number(step, rank, world_size)) == (rank, world_size)
        for rank in range(world_size)
    )


def _with_argument(scope: Scope, last: ast.expr, argument: str) -> CodeChange | None:
    """Add an argument behind the last one of a call."""
    number = last.end_lineno or last.lineno
    before = scope.code.source(number)
    end = len(before.encode()[: last.end_col_offset].decode(errors="replace"))
    after = f"{before[:end]}, {argument}{before[end:]}"
    if not Code(_replaced(scope.code, number, after)).statements:
        return None
    return _change(scope, [ChangedLine("removed", number, before), ChangedLine("added", 0, after)])


def _replaced(code: Code, line: int, text: str) -> str:
    lines = code.text.splitlines()
    lines[line - 1] = text
    return "\n".join(lines)


# --- the shortest list ---------------------------------------------------------------------------


def _shortest(loop: ast.For, scope: Scope) -> CodeChange | None:
    """Let all ranks take as many items of a list as the rank with the fewest has."""
    items, code = unwrapped(loop.iter), scope.code
    is_inside = any(line != loop.lineno for line in _lines_around(loop, code))
    if not isinstance(items, ast.Name) or is_inside or code.mentions(_SHORTEST):
        return None
    is_list = _is_list(resolved(items, scope).value)
    if not is_list or scope.site.function != "<module>" or items.end_lineno != loop.lineno:
        return None
    before, outer = code.source(loop.lineno), " " * loop.col_offset
    end = len(before.encode()[: items.end_col_offset].decode(errors="replace"))
    added = [
        f"{outer}{_SHORTEST} = torch.tensor(len({items.id}), device=device)",
        f"{outer}dist.all_reduce({_SHORTEST}, op=dist.ReduceOp.MIN)",
        f"{before[:end]}[:{_SHORTEST}]{before[end:]}",
    ]
    removed = ChangedLine("removed", loop.lineno, before)
    return _change(
        scope,
        [
            *(ChangedLine("added", 0, line) for line in added[:2]),
            removed,
            ChangedLine("added", 0, added[2]),
        ],
    )


def _lines_around(loop: ast.For, code: Code) -> set[int]:
    """The lines of the branches around a loop, and its own."""
    return {branch.line for branch in code.branches(loop.lineno)}


def _is_list(value: ast.expr) -> bool:
    match value:
        case ast.List() | ast.ListComp() | ast.Tuple():
            return True
        case ast.BinOp(left=left, op=ast.Mult() | ast.Add(), right=right):
            return _is_list(left) or _is_list(right)
        case ast.Subscript(value=data, slice=ast.Slice()):
            return _is_list(data)
        case _:
            return called(value) in ("list", "sorted", "split", "chunk")


# --- join ----------------------------------------------------------------------------------------


def _joined(loop: ast.For, scope: Scope) -> CodeChange | None:
    """Put ``with model.join():``, or ``Join``, around a loop that trains modules of DDP."""
    calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call)]
    names = {node.func.id for node in calls if isinstance(node.func, ast.Name)}
    models = [name for name in sorted(names) if _is_ddp(name, scope)]
    lines = lines_of(loop)
    if not models or not any(called(each) == "backward" for each in calls):
        return None
    if communicates(loop) or has_long_text(loop) or len(lines) > _MAX_LOOP:
        return None
    inner = shifted(scope.code, lines, len(INDENTATION))
    if inner is None:
        return None
    header = [f"with {models[0]}.join():"]
    if len(models) > 1:
        order = training_order(loop, models)
        if order is None or not all(_is_alike(name, scope) for name in order):
            return None
        header = [_IMPORT_JOIN, f"with Join([{', '.join(order)}]):"]
    return _change(
        scope,
        [
            *(ChangedLine("removed", line, scope.code.source(line)) for line in lines),
            *(ChangedLine("added", 0, f"{' ' * loop.col_offset}{line}") for line in header),
            *(ChangedLine("added", 0, source) for source in inner),
        ],
    )


def _is_ddp(name: str, scope: Scope) -> bool:
    definition = scope.definition(name)
    if definition is None or any(map(definition.scope.code.mentions, _OWN_COLLECTIVES)):
        return False
    return called(definition.value) in ("DDP", "DistributedDataParallel")


def _is_alike(name: str, scope: Scope) -> bool:
    """Whether a model is in the default group, which all models of a ``Join`` have to share."""
    definition = scope.definition(name)
    call = None if definition is None else definition.value
    if not isinstance(call, ast.Call) or len(call.args) != 1:
        return False
    return {keyword.arg for keyword in call.keywords} <= set(_JOINED_OPTIONS)
