"""The names that a cell binds, changes and reads, from its syntax tree.

Runs in: the notebook's process. Pure.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

from nbddp.controller.diagnosis import holds

_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Functions that seed random numbers: of these modules, or, with the last names, of any origin.
_SEEDED_MODULES = ("torch", "random", "np", "numpy")
_SEEDING = ("manual_seed", "manual_seed_all", "seed", "seed_all")
_SEEDING_ALL = ("manual_seed", "set_seed", "seed_all", "seed_everything")
#: Functions and classes that wait for the other ranks in what they return.
_JOINT = (
    *("DDP", "DistributedDataParallel", "FSDP", "FullyShardedDataParallel", "fully_shard"),
    *("new_group", "init_device_mesh", "DeviceMesh", "distribute_tensor", "distribute_module"),
)


@dataclass(frozen=True)
class CellNames:
    """The global names of a cell.

    Attributes:
        binds: assigned, imported or defined by it, or by a function of it: ``global steps``.
        changes: names whose value it changes in place: ``model.head = ...``, ``sizes[0] = 1``.
        reads: names that it uses, also inside its functions, and does not bind before.
        deletes: names that ``del`` has removed when it ends.
        touches: names whose value a method of it may change: ``losses.append(1)``.
        fills: those of ``touches`` that a method of a tensor changes in place: ``w.mul_(2)``.
        later: names that its functions bind, change or touch when they are called.
        assigns: those of ``binds`` that are bound when it has run, without a call of its functions.
        perhaps: those of ``reads`` that it binds itself before, if a loop of it runs at least once,
            or if it takes the right branch: ``for x in data: y = x``, then ``y``.
        defines: those of ``binds`` that are functions, classes or imported.
        seeds: whether it seeds random numbers, not only in a function.
        has_star: whether it has ``from module import *``.
    """

    binds: frozenset[str]
    changes: frozenset[str]
    reads: frozenset[str]
    has_star: bool
    deletes: frozenset[str] = frozenset()
    seeds: bool = False
    touches: frozenset[str] = frozenset()
    fills: frozenset[str] = frozenset()
    later: frozenset[str] = frozenset()
    assigns: frozenset[str] = frozenset()
    perhaps: frozenset[str] = frozenset()
    defines: frozenset[str] = frozenset()


def cell_names(statements: Sequence[ast.stmt]) -> CellNames:
    r"""Find the global names of a cell.

    Args:
        statements: its syntax tree.

    >>> found = cell_names(ast.parse("def f():\n    return a + b\nb = f()\nc.d = 1").body)
    >>> sorted(found.binds), sorted(found.changes), sorted(found.reads)
    (['b', 'f'], ['c'], ['a', 'b', 'c'])
    """
    scope = _Scope()
    scope.read_all(statements)
    reads = _needed(statements, set())
    binds = scope.binds | scope.declared
    perhaps: set[str] = set()
    if not reads.isdisjoint(binds):
        perhaps = reads - _needed(statements, set(), all_run=True)
    return CellNames(
        frozenset(binds),
        frozenset(scope.changes),
        frozenset(reads),
        scope.has_star,
        frozenset(scope.deletes),
        scope.seeds,
        frozenset(scope.touches),
        frozenset(scope.fills),
        frozenset(scope.declared | scope.later),
        frozenset(scope.binds),
        frozenset(perhaps),
        frozenset(scope.defines),
    )


def _needed(statements: Iterable[ast.stmt], bound: set[str], *, all_run: bool = False) -> set[str]:
    """Find the names that statements use before they have surely bound them.

    Args:
        statements: a block of code.
        bound: the names that are bound when it begins; those of its end are in it afterwards.
        all_run: what loops and branches bind counts as bound, as if all of them had run.
    """
    needed: set[str] = set()

    def read(*nodes: ast.AST | None) -> _Scope:
        scope = _Scope()
        scope.read_all(nodes)
        needed.update(scope.reads - bound)
        return scope

    def read_block(block: Iterable[ast.stmt], names: set[str]) -> set[str]:
        needed.update(_needed(block, names, all_run=all_run))
        return names

    def read_branch(block: Iterable[ast.stmt], names: set[str]) -> None:
        """Read a block that may not run."""
        names = read_block(block, names)
        if all_run:
            bound.update(names)

    for statement in statements:
        match statement:
            case ast.If():
                read(statement.test)
                branches = (statement.body, statement.orelse)
                taken, other = (read_block(block, set(bound)) for block in branches)
                bound.clear()
                bound |= taken | other if all_run else taken & other
            case ast.For() | ast.AsyncFor():
                read(statement.iter)
                read_branch(statement.body, bound | read(statement.target).binds)
                read_branch(statement.orelse, set(bound))
            case ast.While():
                read(statement.test)
                read_branch(statement.body, set(bound))
                read_branch(statement.orelse, set(bound))
            case ast.With() | ast.AsyncWith():
                for item in statement.items:
                    read(item.context_expr)
                    bound |= read(item.optional_vars).binds
                read_block(statement.body, bound)
            case ast.Try() | ast.TryStar():
                read_branch([*statement.body, *statement.orelse], set(bound))
                for handler in statement.handlers:
                    read(handler.type)
                    read_branch(handler.body, bound | {handler.name or ""})
                read_block(statement.finalbody, bound)
            case ast.Match():
                read(statement.subject)
                for case in statement.cases:
                    names = bound | read(case.pattern).binds
                    read_block([ast.Expr(case.guard)] if case.guard else [], names)
                    read_branch(case.body, names)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                bound.add(statement.name)
                read(statement)
            case _:
                scope = read(statement)
                bound |= scope.binds
                bound -= scope.deletes
    return needed


def joint_names(statements: Sequence[ast.stmt]) -> frozenset[str]:
    r"""Find the names of a cell that only all ranks together can make, and what is made from them.

    Args:
        statements: its syntax tree.

    >>> cell = "net = DDP(nn.Linear(2, 2))\nopt = SGD(net.parameters())\nloss = 0"
    >>> sorted(joint_names(ast.parse(cell).body))
    ['net', 'opt']
    """
    joint: set[str] = set()
    nodes = (node for statement in statements for node in ast.walk(statement))
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            calls = [part for part in ast.walk(node.value) if isinstance(part, ast.Call)]
            if any(_is_joint(call, joint) for call in calls):
                scope = _Scope()
                scope.read_all([node])
                joint |= scope.binds
    return frozenset(joint)


def _is_joint(call: ast.Call, joint: Iterable[str]) -> bool:
    """Whether a call waits for other ranks, or gets a value, or its parameters, that did."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in _JOINT:
        return True
    for argument in (*call.args, *(each.value for each in call.keywords)):
        part = argument
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            part = part.func.value if part.func.attr.endswith("parameters") else part
        if isinstance(part, ast.Name) and part.id in joint:
            return True
    return False


def taken_branches(
    statements: Sequence[ast.stmt], rank: int, world_size: int, *, unknown: bool
) -> list[ast.stmt]:
    """Leave out the branches that a rank does not take.

    Args:
        statements: the syntax tree of a cell.
        rank: the rank.
        world_size: the number of ranks of the pool.
        unknown: keep the branches of which it is not known.
    """
    pruned = _Pruned(rank, world_size, unknown).visit(ast.Module(deepcopy(list(statements)), []))
    body: list[ast.stmt] = pruned.body
    return body


class _Pruned(ast.NodeTransformer):
    def __init__(self, rank: int, world_size: int, unknown: bool) -> None:
        self._place = rank, world_size
        self._unknown = unknown

    def visit_If(self, node: ast.If) -> ast.AST:
        met = holds(node.test, *self._place)
        node.body = [] if met is False or (met is None and not self._unknown) else node.body
        node.orelse = [] if met or (met is None and not self._unknown) else node.orelse
        return self.generic_visit(node)


class _Scope(ast.NodeVisitor):
    """The names of the module, or of one function, class or comprehension in it."""

    def __init__(self) -> None:
        self.binds: set[str] = set()
        self.changes: set[str] = set()
        self.reads: set[str] = set()
        self.deletes: set[str] = set()
        self.touches: set[str] = set()
        self.fills: set[str] = set()
        self.declared: set[str] = set()  # bound by functions, when they are called
        self.later: set[str] = set()
        self.globals: set[str] = set()  # declared by a ``global`` statement
        self.has_star = False
        self.seeds = False
        self.defines: set[str] = set()

    def read_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def _add_inner(
        self, parameters: Iterable[str], nodes: Iterable[ast.AST | None], *, is_function: bool
    ) -> "_Scope":
        """Add the global names of code with a scope of its own."""
        inner = _Scope()
        inner.read_all(nodes)
        local = (inner.binds | inner.deletes | set(parameters)) - inner.globals
        self.reads |= inner.reads - local
        self.changes |= inner.changes - local
        self.touches |= inner.touches - local
        self.fills |= inner.fills - local
        self.declared |= inner.declared
        self.later |= inner.later - local
        if is_function:
            self.declared |= inner.binds & inner.globals
            self.later |= (inner.touches | inner.changes) - local
        else:
            self.binds |= inner.binds & inner.globals
        return inner

    def visit_Name(self, node: ast.Name) -> None:
        match node.ctx:
            case ast.Store():
                self._bind(node.id)
            case ast.Del():
                self.reads.add(node.id)
                self.deletes.add(node.id)
            case _:
                self.reads.add(node.id)

    def _bind(self, *names: str) -> None:
        self.binds.update(names)
        self.deletes.difference_update(names)

    def _define(self, *names: str) -> None:
        self._bind(*names)
        self.defines.update(names)

    def visit_Call(self, node: ast.Call) -> None:
        self.seeds = self.seeds or _seeds(node.func)
        root: ast.AST = node.func
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if isinstance(root, ast.Name) and root is not node.func:
            self.touches.add(root.id)
        if (
            isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.attr.endswith("_")
            and not node.func.attr.endswith("__")
        ):
            self.fills.add(node.func.value.id)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.reads.add(node.target.id)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._visit_part(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._visit_part(node)

    def _visit_part(self, node: ast.Attribute | ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            root: ast.AST = node
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            if isinstance(root, ast.Name):
                self.changes.add(root.id)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        self.globals |= set(node.names)

    def visit_Import(self, node: ast.Import) -> None:
        self._define(*(alias.asname or alias.name.partition(".")[0] for alias in node.names))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        names = {alias.asname or alias.name for alias in node.names}
        self.has_star = self.has_star or "*" in names
        self._define(*(names - {"*"}))

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        if node.name is not None:
            self._bind(node.name)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node)

    def _visit_function(self, node: _Function) -> None:
        self._define(node.name)
        self.read_all([*node.decorator_list, node.returns, *_outside(node.args)])
        self._add_inner(_parameters(node.args), node.body, is_function=True)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.read_all(_outside(node.args))
        self._add_inner(_parameters(node.args), [node.body], is_function=True)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._define(node.name)
        self.read_all([*node.decorator_list, *node.bases, *node.keywords])
        self._add_inner((), node.body, is_function=False)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._visit_comprehension(node)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._visit_comprehension(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._visit_comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._visit_comprehension(node)

    def _visit_comprehension(self, node: _Comprehension) -> None:
        inner = self._add_inner((), ast.iter_child_nodes(node), is_function=False)
        targets = _Scope()
        targets.read_all(generator.target for generator in node.generators)
        self.binds |= inner.binds - targets.binds  # of ``:=``, which binds outside


def _seeds(function: ast.expr) -> bool:
    """Return whether a function seeds generators that a process has: `torch.manual_seed`."""
    if isinstance(function, ast.Name):
        return function.id in _SEEDING_ALL
    if not isinstance(function, ast.Attribute):
        return False
    root: ast.expr = function.value
    while isinstance(root, ast.Attribute):
        root = root.value
    is_module = isinstance(root, ast.Name) and root.id in _SEEDED_MODULES
    return function.attr in (_SEEDING if is_module else _SEEDING_ALL[1:])


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for argument in (*named, arguments.vararg, arguments.kwarg):
        if argument is not None:
            yield argument.arg


def _outside(arguments: ast.arguments) -> Iterator[ast.AST | None]:
    """Defaults and annotations, which are evaluated outside of the function."""
    yield from arguments.defaults
    yield from arguments.kw_defaults
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for argument in (*named, arguments.vararg, arguments.kwarg):
        if argument is not None:
            yield argument.annotation
