"""Finds the names whose values depend on the rank: ``is_main = rank == 0``.

Runs in: the notebook's process. Pure. A rank must not take such a value from other
ranks, even if all of these share it.
"""

import ast
import builtins
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from nbddp.controller.catch_up.cell_names import cell_names
from nbddp.controller.catch_up.past_cell import PastCell
from nbddp.controller.diagnosis import Code
from nbddp.settings import PREDEFINED_NAMES
from nbddp.wire.fault_grammar import OPERATIONS

_RANKS = frozenset(("rank", "local_rank"))
_RANK_ATTRIBUTES = _RANKS | {
    *("get_rank", "get_local_rank", "get_node_local_rank", "get_node_rank", "get_group_rank"),
    *("get_coordinate", "node_rank"),
}
_RANK_VARIABLES = frozenset(("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "SLURM_PROCID"))
#: Their functions return what the arguments say, and call no other rank.
_SILENT_MODULES = frozenset(("torch", "math", "np", "numpy", "random", "os"))
_BUILTINS = frozenset(dir(builtins))
#: A function that has a value of one of these types cannot change it.
_IMMUTABLE = frozenset(("NoneType", "bool", "int", "float", "complex", "str", "bytes", "tuple"))
_COLLECTIVES = OPERATIONS | {
    *("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"),
    *("irecv", "isend", "recv_object_list", "send_object_list"),
}
#: Arguments that collectives write.
_FILLED = frozenset(("output", "output_tensor", "output_tensor_list", "tensor", "tensor_list"))
#: Functions and options that take a device.
_DEVICES = frozenset(("to", "cuda", "device", "set_device"))
_DEVICE_OPTIONS = frozenset(("device", "device_ids", "output_device", "map_location"))
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class _Origin:
    """The origin of a value."""

    of_rank: bool  #: it depends on the rank
    is_plain: bool  #: no function has made it
    uses: frozenset[str]  #: the names that it was made from


_NO_NAMES: frozenset[str] = frozenset()


class ValuesByRank:
    """The names whose values depend on the rank, by the code that made them.

    A value that a collective has filled, or perhaps a function with one has returned, is none.

    Args:
        cells: those that ran on a rank, in order.
    """

    def __init__(self, cells: Iterable[PastCell]) -> None:
        self._block = _Block()
        for cell in cells:
            self._block.has_operations = cell.has_operations
            self._block.read(Code(cell.python, cell.first_line).statements)

    def is_own(self, name: str, kind: str) -> bool:
        """Whether a rank keeps the value that its cells made, though all others have another.

        Args:
            name: its name.
            kind: the name of its type; empty: the rank has none.
        """
        origin = self._block.origins.get(name)
        if origin is None or not origin.of_rank:
            return False
        if not kind:
            return origin.is_plain
        return kind in _IMMUTABLE or name not in self._block.passed

    def uses(self, name: str) -> frozenset[str]:
        """The names that a value was made from, and those that these were made from."""
        origin = self._block.origins.get(name)
        return _NO_NAMES if origin is None else origin.uses


@dataclass
class _Block:
    """Code that runs, and what it has found so far: of a cell, or of a function of it."""

    origins: dict[str, _Origin] = field(default_factory=dict)
    hidden: frozenset[str] = _NO_NAMES  #: parameters
    has_operations: bool = False
    #: Names that a function has got which perhaps has collectives.
    passed: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)  #: functions without collectives
    methods: set[str] = field(default_factory=set)  #: other methods of classes of cells
    returns_rank: bool = False

    def read(  # noqa: PLR0912 - one for each kind of statement
        self, statements: Sequence[ast.stmt], *, of_rank: bool = False, is_sure: bool = True
    ) -> None:
        """Read a block.

        Args:
            statements: the block.
            of_rank: a condition around it depends on the rank.
            is_sure: it runs exactly once.
        """
        for statement in statements:
            match statement:
                case ast.If():
                    self._bind(statement.test, of_rank=of_rank, is_sure=is_sure)
                    of_test = of_rank or self._is_of_rank(statement.test)
                    for block in (statement.body, statement.orelse):
                        self.read(block, of_rank=of_test, is_sure=False)
                case ast.Match():
                    of_subject = of_rank or self._is_of_rank(statement.subject)
                    for case in statement.cases:
                        self.read(case.body, of_rank=of_subject, is_sure=False)
                case ast.For() | ast.AsyncFor() | ast.While():
                    self._bind(_head(statement), of_rank=of_rank, is_sure=False)
                    for block in (statement.body, statement.orelse):
                        self.read(block, of_rank=of_rank, is_sure=False)
                case ast.With() | ast.AsyncWith():
                    for node in map(_item, statement.items):
                        self._bind(node, of_rank=of_rank, is_sure=is_sure)
                    self.read(statement.body, of_rank=of_rank, is_sure=is_sure)
                case ast.Try() | ast.TryStar():
                    handlers = [each for handler in statement.handlers for each in handler.body]
                    for block in (statement.body, handlers, statement.orelse, statement.finalbody):
                        self.read(block, of_rank=of_rank, is_sure=False)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._define(statement.name, [statement], of_rank=of_rank)
                case ast.ClassDef():
                    functions = [each for each in statement.body if isinstance(each, _Function)]
                    self._define(statement.name, functions, of_rank=of_rank)
                case _:
                    self._bind(statement, of_rank=of_rank, is_sure=is_sure)

    def _define(self, name: str, functions: Sequence[_Function], *, of_rank: bool) -> None:
        """Note a function, or a class with these methods."""
        is_of_rank, is_silent = of_rank, True
        uses: set[str] = set()
        for function in functions:
            arguments = function.args
            named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            hidden = {each.arg for each in (*named, arguments.vararg, arguments.kwarg) if each}
            defaults = (*arguments.defaults, *filter(None, arguments.kw_defaults))
            is_of_rank = is_of_rank or any(map(self._is_of_rank, defaults))
            origins = {n: origin for n, origin in self.origins.items() if n not in hidden}
            inner = _Block(origins, self.hidden | hidden, silent=self.silent, methods=self.methods)
            inner.read(function.body)
            changed = any(n in hidden and each.of_rank for n, each in inner.origins.items())
            is_of_rank = is_of_rank or inner.returns_rank or changed
            silent = self._is_silent(function.body)
            if not silent:
                self.methods.add(function.name)
            is_silent = is_silent and silent
            uses |= self._with_uses(cell_names(function.body).reads - hidden)
        self.origins[name] = _Origin(is_of_rank, is_plain=False, uses=frozenset(uses))
        (self.silent.add if is_silent else self.silent.discard)(name)

    def _bind(self, node: ast.stmt | ast.expr, *, of_rank: bool, is_sure: bool) -> None:
        """Note the names that one statement, or one expression, binds and changes."""
        statement = ast.Expr(node) if isinstance(node, ast.expr) else node
        names = cell_names([statement])
        is_of_rank = of_rank or self._is_of_rank(statement)
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            is_of_rank = is_of_rank or self._has(statement.target)
        is_shared = self.has_operations and not self._is_silent([statement])
        is_plain = not any(
            isinstance(each, ast.Call) and not _is_rank(each.func) for each in ast.walk(statement)
        )
        used = [self.origins[name] for name in names.reads if name in self.origins]
        is_plain = is_plain and all(origin.is_plain for origin in used if origin.of_rank)
        uses = self._with_uses(names.reads)
        if is_of_rank and any(
            isinstance(each, ast.Return | ast.Yield | ast.YieldFrom) for each in ast.walk(statement)
        ):
            self.returns_rank = True
        for name in names.binds - names.defines:
            before = self.origins.get(name)
            if is_of_rank and not is_shared:
                self.origins[name] = _Origin(of_rank=True, is_plain=is_plain, uses=uses)
            elif is_sure or before is None:
                self.origins[name] = _Origin(of_rank=False, is_plain=is_plain, uses=uses)
            if is_sure:
                self.passed.discard(name)
        for name in names.changes | names.touches:
            before = self.origins.get(name)
            if before is None and name in self.hidden:
                before = _Origin(of_rank=False, is_plain=True, uses=_NO_NAMES)
            if before is not None and is_of_rank and name not in PREDEFINED_NAMES:
                self.origins[name] = _Origin(
                    of_rank=True, is_plain=before.is_plain and is_plain, uses=before.uses | uses
                )
        if is_shared:
            self._share(statement)

    def _with_uses(self, names: Iterable[str]) -> frozenset[str]:
        known = [self.origins[name].uses for name in names if name in self.origins]
        return frozenset(names).union(*known)

    def _share(self, statement: ast.stmt) -> None:
        """Note the values that the collectives of a statement fill, or perhaps its functions."""
        for call in ast.walk(statement):
            if not isinstance(call, ast.Call) or self._is_silent_call(call.func):
                continue
            arguments = [*call.args, *(each.value for each in call.keywords)]
            names = [each.id for each in arguments if isinstance(each, ast.Name)]
            if _last(call.func) not in _COLLECTIVES:
                self.passed.update(names)
                continue
            filled = [each.value for each in call.keywords if each.arg in _FILLED]
            for value in filled or call.args[:1]:
                name = _root(value)
                if name in self.origins:
                    uses = self.origins[name].uses
                    self.origins[name] = _Origin(of_rank=False, is_plain=False, uses=uses)

    def _is_of_rank(self, node: ast.AST) -> bool:
        return any(
            self._is_rank_here(each)
            or (isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load) and self._has(each))
            for each in _about_values(node)
        )

    def _has(self, node: ast.Name) -> bool:
        origin = self.origins.get(node.id)
        return origin is not None and origin.of_rank

    def _is_rank_here(self, node: ast.AST) -> bool:
        is_own = isinstance(node, ast.Name) and (
            node.id in self.hidden or (node.id in self.origins and not self._has(node))
        )
        return not is_own and _is_rank(node)

    def _is_silent(self, nodes: Iterable[ast.AST]) -> bool:
        calls = (call for node in nodes for call in ast.walk(node) if isinstance(call, ast.Call))
        return all(self._is_silent_call(call.func) for call in calls)

    def _is_silent_call(self, function: ast.expr) -> bool:
        """Whether a function surely calls no other rank."""
        name = _last(function)
        if _is_rank(function) or name == "get_world_size":
            return True
        if isinstance(function, ast.Name):
            return name in self.silent or (name in _BUILTINS and name not in self.origins)
        root = function
        while isinstance(root, ast.Attribute):
            root = root.value
        is_module = isinstance(root, ast.Name) and root.id in _SILENT_MODULES
        return name not in _COLLECTIVES and (is_module or name not in self.methods)


def _about_values(node: ast.AST) -> Iterator[ast.AST]:
    """Walk through code, but for the device of a value: ``model.to(rank)``, ``device=rank``."""
    yield node
    for part in ast.iter_child_nodes(node):
        is_device = (
            isinstance(node, ast.Call) and part is not node.func and _last(node.func) in _DEVICES
        )
        if not (is_device or (isinstance(part, ast.keyword) and part.arg in _DEVICE_OPTIONS)):
            yield from _about_values(part)


def _head(loop: ast.For | ast.AsyncFor | ast.While) -> ast.stmt | ast.expr:
    """The first line of a loop."""
    return loop.test if isinstance(loop, ast.While) else ast.Assign([loop.target], loop.iter)


def _item(item: ast.withitem) -> ast.stmt | ast.expr:
    target, value = item.optional_vars, item.context_expr
    return value if target is None else ast.Assign([target], value)


def _last(function: ast.expr) -> str:
    """The name of a function, without its module."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _root(value: ast.expr) -> str:
    """The variable in front of attributes and subscripts; empty: there is none."""
    while isinstance(value, ast.Attribute | ast.Subscript):
        value = value.value
    return value.id if isinstance(value, ast.Name) else ""


def _is_rank(node: ast.AST) -> bool:
    """Whether code gives the rank: ``rank``, ``dist.get_rank``, ``"RANK"``."""
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            return name in _RANKS or name == "get_rank"
        case ast.Attribute(attr=name):
            return name in _RANK_ATTRIBUTES
        case ast.Constant(value=str(value)):
            return value in _RANK_VARIABLES
        case _:
            return False
