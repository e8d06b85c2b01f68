"""Finds why a loop is shorter on some ranks: the line that sets its length and depends on the rank.

Runs in: the notebook's process. Pure. Names are followed from the header of the loop: to their one
assignment, to one that only some ranks run, and, for a parameter, to the call of the function. Only
parts of an expression that set a length count: ``[torch.ones(4) * rank for _ in range(n)]`` has the
same length on all ranks where ``n`` is the same.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from nbddp.controller.diagnosis.assigned_names import assigned_by_ranks
from nbddp.controller.diagnosis.code_places import WRAPPERS, called, names_in, unwrapped
from nbddp.controller.diagnosis.control_flow import Code, Sources
from nbddp.controller.diagnosis.definitions import Scope, function_at, nodes_of, resolved
from nbddp.controller.diagnosis.divergence import Divergence, names_ranks
from nbddp.controller.diagnosis.report import CodeLine
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import LoopVariable, Site
from nbddp.wire.rank_set import RankSet, ranks_by_value

#: Names that are followed, one after another.
_MAX_STEPS = 6
#: Functions of which only the first argument sets the length of their result.
_FIRST_ONLY = (*WRAPPERS, "list", "sorted", "reversed", "TensorDataset")
_TENSORS = ("ones", "zeros", "rand", "randn", "empty", "full")
#: Arguments of a ``DataLoader`` that set the number of its batches.
_OF_LOADER = ("dataset", "batch_size", "sampler", "batch_sampler", "drop_last")
#: Methods that keep the length of what they belong to, and such that divide it.
_MOVES, _PARTS = ("to", "cuda", "type", "astype", "pin_memory"), ("split", "chunk", "batch")
_Path = tuple[CodeLine, ...]
#: Names of data, and of what divides it among the ranks.
_DATA = re.compile(r"load|sampl|data|batch|shard|corpus|example|\bd[ls]\b", re.IGNORECASE)


@dataclass(frozen=True)
class LoopLength:
    """The length of a loop that is not the same on all ranks."""

    #: The last iterations of ranks, by the value of the loop's variable; empty: it has none.
    last: Mapping[LoopVariable, RankSet]
    is_of_loader: bool  #: whether its items are those of a ``DataLoader``, as the code shows
    has_own_batches: bool = False  #: the ``DataLoader`` has a ``batch_sampler``
    #: The line that depends on the rank, with its condition, and those that carry its value on.
    lines: tuple[CodeLine, ...] = ()
    source: Site = field(default_factory=Site)  #: the assignment that depends on the rank
    #: The name that it gives a value, or the one item of it that is used; empty: no such line is
    #: known.
    name: str = ""
    is_number: bool = False  #: whether that value is a number, and not the items themselves
    #: Another line by which the length depends on the rank: the call that gives it as an argument,
    #: or a condition in the generator of the items.
    decided_at: Site | None = None


def loop_length(
    divergence: Divergence, callers: Sequence[Site], graph: WaitForGraph, sources: Sources
) -> LoopLength:
    """Return what is known of the length of a loop.

    Args:
        divergence: a line in a loop that had fewer iterations on some ranks.
        callers: the lines that called its function, innermost first.
        graph: the ranks.
        sources: the code.
    """
    scope = Scope(divergence.site, divergence.code, sources)
    loop = loop_of(divergence)
    last = _last_iterations(divergence, graph)
    if loop is None:
        return LoopLength(last, is_of_loader=False)
    items = resolved(unwrapped(loop.iter), scope).value
    is_of_loader = called(items) == "DataLoader"
    has_own_batches = is_of_loader and "batch_sampler=" in ast.unparse(items)
    if _is_filtered(loop.iter):
        return LoopLength(last, is_of_loader, has_own_batches)
    path = _path(loop.iter, _Place(scope, tuple(callers)), _MAX_STEPS)
    for line in path or ():
        name, value = _assigned(line.site.source)
        if name:
            lines = path or ()
            is_number = _is_number(value) or _is_counted_by(loop.iter, name, lines)
            item = _item(name, loop.iter, lines)
            if item:
                name, is_number = item, _is_count(loop.iter, name, lines)
            return LoopLength(
                last, is_of_loader, has_own_batches, lines, line.site, name, is_number
            )
    decided_at = path[0].site if path else _condition_of_generator(items, scope)
    return LoopLength(last, is_of_loader, has_own_batches, decided_at=decided_at)


def _condition_of_generator(items: ast.expr, scope: Scope) -> Site | None:
    """The line of a generator by which the number of its items depends on the rank; None: none."""
    if not isinstance(items, ast.Call) or not isinstance(items.func, ast.Name):
        return None
    nodes = (node for statement in scope.code.statements for node in ast.walk(statement))
    made = [
        node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == items.func.id
    ]
    inner = list(nodes_of(made[0].body)) if len(made) == 1 else []
    conditions = [
        node
        for node in inner
        if isinstance(node, ast.If)
        if names_ranks(ast.unparse(node.test)) and _changes_count(node, inner)
    ]
    first = min(conditions, key=lambda node: node.lineno, default=None)
    if first is None:
        return None
    source = scope.code.source(first.lineno).strip()
    return msgspec.structs.replace(scope.site, line=first.lineno, source=source)


def _changes_count(condition: ast.If, nodes: Sequence[ast.AST]) -> bool:
    """Whether a generator, which has these nodes, has more items where a condition is true, or not.

    It skips a later ``yield``, ends a loop that has one, or has more of them in one branch.
    """
    yields = [node for node in nodes if isinstance(node, ast.Yield)]
    is_before = any(node.lineno > (condition.end_lineno or 0) for node in yields)
    is_repeated = any(
        loop.lineno < condition.lineno <= (loop.end_lineno or 0)
        and any(loop.lineno < node.lineno <= (loop.end_lineno or 0) for node in yields)
        for loop in nodes
        if isinstance(loop, ast.For | ast.While)
    )
    branches = condition.body, condition.orelse
    counts = {sum(isinstance(each, ast.Yield) for each in nodes_of(body)) for body in branches}
    ends = [type(body[-1]) for body in branches if body]
    return (
        len(counts) > 1
        or (is_before and ast.Continue in ends)
        or ((is_before or is_repeated) and bool({ast.Break, ast.Return}.intersection(ends)))
    )


def _uses(items: ast.expr, lines: Sequence[CodeLine]) -> list[ast.expr]:
    """The items of a loop, and the values that lines on the way to it give to names."""
    values = (_assigned(line.site.source)[1] for line in lines)
    return [items, *(value for value in values if value is not None)]


def _item(name: str, items: ast.expr, lines: Sequence[CodeLine]) -> str:
    """The item of a value that sets the length of a loop: ``sizes[0]``; empty: it is the value."""
    uses, items_used = 0, []
    for node in (node for use in _uses(items, lines) for node in ast.walk(use)):
        match node:
            case ast.Name(id=used) if used == name:
                uses += 1
            case ast.Subscript(value=ast.Name(id=used), slice=index) if used == name:
                items_used += [] if isinstance(index, ast.Slice) else [ast.unparse(node)]
            case _:
                pass
    return items_used[0] if len(items_used) == uses and len(set(items_used)) == 1 else ""


def _is_count(items: ast.expr, name: str, lines: Sequence[CodeLine]) -> bool:
    """Whether an item of a value is the number of iterations, and has no length of its own."""
    calls = [
        node
        for use in _uses(items, lines)
        for node in ast.walk(use)
        if called(node) == "len"
        if any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node))
    ]
    return called(unwrapped(items)) == "range" and not calls


#: Functions whose result is a number, if their arguments are numbers.
_NUMBERS = frozenset(("int", "float", "round", "abs", "min", "max", "tensor", "as_tensor"))
#: Functions and methods that leave a number one.
_KEEP_NUMBERS = _NUMBERS | {"range", "item", *WRAPPERS}


def _is_number(value: ast.expr | None) -> bool:
    """Whether an expression is a number, or a tensor with one."""
    if _has_items(value):
        return False
    if isinstance(value, ast.Call) and called(value) in _NUMBERS:
        return bool(value.args) and all(map(_is_number, value.args))
    return isinstance(value, ast.IfExp | ast.BinOp | ast.Constant)


def _is_counted_by(items: ast.expr, name: str, lines: Sequence[CodeLine]) -> bool:
    """Whether a value is the number of iterations: a ``range`` has it, and no other function.

    ``len(x)``, ``x.shape[0]`` and ``count(x)`` are numbers where ``x`` is none.
    """
    others = (
        node
        for use in _uses(items, lines)
        for node in ast.walk(use)
        if isinstance(node, ast.Call | ast.Attribute | ast.Subscript)
        and called(node) not in _KEEP_NUMBERS
        and getattr(node, "attr", "") != "item"
    )
    is_range = called(unwrapped(items)) == "range"
    return is_range and not any(name in names_in(node) for node in others)


def _is_filtered(items: ast.expr) -> bool:
    """Whether a condition leaves out items, whose values may then set the length."""
    comprehensions = (node for node in ast.walk(items) if isinstance(node, ast.comprehension))
    return called(items) == "filter" or any(each.ifs for each in comprehensions)


def is_over_data(divergence: Divergence, sources: Sources) -> bool:
    """Return whether a loop iterates over data, as its names, or those in its definition, say.

    Args:
        divergence: a line in the loop.
        sources: the code.
    """
    loop = loop_of(divergence)
    if loop is None:
        return False
    items = unwrapped(loop.iter)
    scope = Scope(divergence.site, divergence.code, sources)
    return any(_DATA.search(ast.unparse(each)) for each in (items, resolved(items, scope).value))


def loop_of(divergence: Divergence) -> ast.For | None:
    """The ``for`` loop around a line; None: it is in none, or in a ``while``."""
    line = 0 if divergence.loop is None else divergence.loop.line
    nodes = ast.walk(ast.Module(divergence.code.statements, []))
    loops = (node for node in nodes if isinstance(node, ast.For))
    return next((loop for loop in loops if loop.lineno == line), None)


def _last_iterations(divergence: Divergence, graph: WaitForGraph) -> Mapping[LoopVariable, RankSet]:
    """The last iteration of each rank at a line, by the variable in the header of its loop."""
    header = "" if divergence.loop is None else divergence.loop.source
    iterations = {
        rank: operation.iteration
        for rank, history in graph.histories.items()
        for operation in history.operations.values()
        if operation.site.position == divergence.site.position and operation.iteration
    }
    if len({iteration[:-1] for iteration in iterations.values()}) > 1:
        return {}
    last = {rank: iteration[-1] for rank, iteration in iterations.items()}
    names = {variable.name for variable in last.values()}
    if len(names) != 1 or not Code(f"{header}\n    pass").mentions(*names):
        return {}
    return ranks_by_value(last)


# --- from the loop to the line that depends on the rank ------------------------------------------


@dataclass(frozen=True)
class _Place:
    """A line, and the lines that called its function."""

    scope: Scope
    callers: tuple[Site, ...]

    def line(self, number: int) -> CodeLine:
        code, site = self.scope.code, self.scope.site
        source = code.source(number).strip()
        return CodeLine(msgspec.structs.replace(site, line=number, source=source), RankSet())


def _path(expression: ast.expr, place: _Place, steps: int) -> _Path | None:
    """The lines by which the length of a value depends on the rank; None: it does not, or may not.

    Empty: the expression itself names the rank.
    """
    parts = list(_length_parts(expression))
    if any(names_ranks(ast.unparse(part)) for part in parts):
        return ()
    names = (part.id for part in parts if isinstance(part, ast.Name))
    paths = (_path_of_name(name, place, steps - 1) for name in names if steps)
    return next((path for path in paths if path is not None), None)


def _path_of_name(name: str, place: _Place, steps: int) -> _Path | None:
    scope = place.scope
    if lines := assigned_by_ranks(name, scope.site, scope.code):
        return tuple(place.line(line) for line in lines)
    definition = scope.definition(name)
    if definition is not None:
        is_here = definition.scope.code is scope.code
        there = _Place(definition.scope, place.callers if is_here else ())
        path = _path(definition.value, there, steps)
        return None if path is None else (*path, there.line(definition.scope.site.line))
    function = function_at(scope.code.statements, scope.site.line)
    if function is None or not place.callers:
        return None
    caller, *callers = place.callers
    code = scope.sources(caller)
    argument = None if code is None else _argument(function, name, code, caller.line)
    if argument is None or code is None:
        return None
    outer = _Place(Scope(caller, code, scope.sources), tuple(callers))
    path = _path(argument, outer, steps)
    return None if path is None else (*path, outer.line(caller.line))


def _argument(
    function: ast.FunctionDef | ast.AsyncFunctionDef, name: str, code: Code, line: int
) -> ast.expr | None:
    """The argument that a line gives to a parameter of the function; None: that is not known."""
    parameters = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    calls = [
        node
        for statement in code.statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or node.lineno)
        if isinstance(node.func, ast.Name) and node.func.id == function.name
    ]
    if len(calls) != 1 or any(isinstance(each, ast.Starred) for each in calls[0].args):
        return None
    arguments = dict(zip(parameters, calls[0].args, strict=False))
    arguments |= {keyword.arg: keyword.value for keyword in calls[0].keywords if keyword.arg}
    return arguments.get(name)


def _length_parts(node: ast.expr) -> Iterator[ast.expr]:  # noqa: PLR0912 - one for each kind
    """The names, and the calls without arguments, that set the length or the value of a number."""
    parts: Sequence[ast.expr | None] = ()
    match node:
        case ast.Name() | ast.Attribute() | ast.Call(args=[], keywords=[]):
            yield node
        case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
            parts = [part for each in node.generators for part in (each.iter, *each.ifs)]
        case ast.Subscript(value=value, slice=ast.Slice(lower=lower, upper=upper, step=step)):
            parts = [value, lower, upper, step]
        case ast.Subscript(value=value, slice=index):
            parts = [value, index]
        case ast.Call():
            parts = _parts_of_call(node)
        case ast.BinOp(left=left, right=right) | ast.Compare(left=left, comparators=[right]):
            parts = [left, right]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            parts = [test, body, orelse]
        case ast.BoolOp(values=values):
            parts = values
        case ast.UnaryOp(operand=operand) | ast.Starred(value=operand):
            parts = [operand]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            parts = [item for item in items if isinstance(item, ast.Starred)]
        case _:
            pass
    for part in parts:
        if part is not None:
            yield from _length_parts(part)


def _parts_of_call(call: ast.Call) -> Sequence[ast.expr]:
    name, owner = called(call), call.func
    if name == "DistributedSampler":
        return ()  # it gives all ranks equally much
    if name == "DataLoader":
        return [*call.args[:2], *(k.value for k in call.keywords if k.arg in _OF_LOADER)]
    if name in _TENSORS and call.args:
        first = call.args[0]
        return first.elts[:1] if isinstance(first, ast.Tuple) else [first]
    arguments = call.args[:1] if name in _FIRST_ONLY else call.args
    if isinstance(owner, ast.Attribute) and name in _MOVES:
        return [owner.value]
    if isinstance(owner, ast.Attribute) and name in _PARTS:
        return [owner.value, *arguments]
    return arguments


def _assigned(source: str) -> tuple[str, ast.expr | None]:
    """The name and the value of an assignment; empty and None: the line is none."""
    match Code(source).statements:
        case [ast.Assign(targets=[ast.Name(id=name)], value=value)]:
            return name, value
        case [ast.AugAssign(target=ast.Name(id=name))]:
            return name, None
        case _:
            return "", None


#: Functions that make items, and no number.
_ITEMS = frozenset(("range", "list", "tuple", "sorted", "arange", "randperm", "split", "chunk"))


def _has_items(value: ast.expr | None) -> bool:
    kinds = ast.List | ast.ListComp | ast.Tuple | ast.Subscript
    nodes = () if value is None else ast.walk(value)
    return any(isinstance(node, kinds) or called(node) in _ITEMS for node in nodes)
