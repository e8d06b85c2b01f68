"""The order in which a loop trains its models, one after another.

Runs in: the notebook's process. Pure. A rank that has joined repeats, for each model in the order
of ``Join([a, b])``, the collectives of a forward and then those of a backward. So ``Join`` is right
only where the other ranks call them in this order: forward and backward of one model, then of the
next. Two forwards before the backwards, or one backward of both, are a mismatch.
"""

import ast
from collections.abc import Iterable

from nbddp.controller.diagnosis.code_places import called

_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
_JUMPS = (ast.Break, ast.Continue, ast.Return)
#: Expressions that may run a part never, or more than once.
_REPEATS = (
    *(ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    *(ast.IfExp, ast.BoolOp, ast.Await),
)
#: No gradient goes through the values of these.
_DETACHED = ("item", "detach", "tolist", "float", "len")


def training_order(loop: ast.For, models: Iterable[str]) -> list[str] | None:
    """Return the models in the order of their training.

    Args:
        loop: the loop.
        models: the names of the models that it calls.

    Returns:
        The order; None: an iteration does not train each model once, one after another, or the
        loss of a model may depend on another one.
    """
    names = set(models)
    order: list[str] = []
    phases: list[list[ast.stmt]] = [[]]  # each ends with a backward; the last one is what follows
    for statement in loop.body:
        forwards, backwards = _forwards(statement, names), _backwards(statement)
        nodes = list(ast.walk(statement))
        if any(isinstance(node, _JUMPS) for node in nodes):
            return None
        if (forwards or backwards) and not _is_straight(statement, nodes):
            return None
        phases[-1].append(statement)
        order += forwards
        if backwards > 1 or len(order) - len(phases) not in (-1, 0):
            return None  # two forwards without a backward between them, or two backwards
        if backwards:
            if len(order) != len(phases):
                return None
            phases.append([])
    is_whole = len(order) == len(phases) - 1 and len(order) == len(set(order)) == len(names)
    return order if is_whole and not _share_values(phases, names) else None


def _forwards(statement: ast.stmt, models: set[str]) -> list[str]:
    calls = (node.func for node in ast.walk(statement) if isinstance(node, ast.Call))
    return [call.id for call in calls if isinstance(call, ast.Name) and call.id in models]


def _backwards(statement: ast.stmt) -> int:
    return sum(called(node) == "backward" for node in ast.walk(statement))


def _is_straight(statement: ast.stmt, nodes: Iterable[ast.AST]) -> bool:
    """Whether an iteration runs all parts of a statement once."""
    is_simple = isinstance(statement, (*_ASSIGNMENTS, ast.Expr))
    return is_simple and not any(isinstance(node, _REPEATS) for node in nodes)


def _share_values(phases: list[list[ast.stmt]], models: set[str]) -> bool:
    """Whether a model may get values that another one has made: its backward reaches that one."""
    made = [
        {name for part in phase if isinstance(part, _ASSIGNMENTS) for name in _bound(part)}
        for phase in phases
    ]
    changed = {name for phase in phases for part in phase for name in _changed(part)}
    for number, phase in enumerate(phases[:-1]):
        foreign = {name for n, names in enumerate(made) if n != number for name in names}
        own: set[str] = set()
        for part in phase:
            if isinstance(part, _ASSIGNMENTS) or _backwards(part):
                if not _read(part).isdisjoint((foreign - own) | changed | models):
                    return True
                own |= _bound(part)
    return False


def _bound(statement: ast.stmt) -> set[str]:
    return {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _changed(statement: ast.stmt) -> set[str]:
    """The names whose objects a statement may change, or that it may bind or not."""
    names = set() if isinstance(statement, (*_ASSIGNMENTS, ast.Expr)) else _bound(statement)
    for node in ast.walk(statement):
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner))) if (
                called(node.value) != "backward"
            ):
                names.add(_root(owner))
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                names.add(_root(node))
            case _:
                pass
    return names


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _read(node: ast.AST) -> set[str]:
    """The names whose values take part in a loss; a model that is called does not count."""
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Load) else set()
    if isinstance(node, ast.Call) and called(node) in _DETACHED:
        return set()
    parts = ast.iter_child_nodes(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        parts = iter([*node.args, *node.keywords])
    return {name for part in parts for name in _read(part)}
