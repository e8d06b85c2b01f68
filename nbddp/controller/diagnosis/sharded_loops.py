"""Finds loops whose iterations the code divides among the ranks: ``if i % world_size == rank:``.

Runs in: the notebook's process. Pure. Ranks are in different iterations of such a loop on purpose.
A condition divides them if one comparison has the loop's variable and the rank. ``rank == 1 and
i == 2`` compares both with constants: one rank leaves out an iteration. Values of tensors divide
nothing, whatever they are made of. In a function that the loop calls, its parameters stand for the
variable.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nbddp.controller.diagnosis.code_places import called, lines_of, names_in
from nbddp.controller.diagnosis.control_flow import Branch, Sources
from nbddp.controller.diagnosis.definitions import Scope, function_at
from nbddp.controller.diagnosis.divergence import Divergence, names_ranks

#: Names that are followed, one after another.
_MAX_STEPS = 6
#: Parts of a number; what other calls return may be anything.
_PARTS = (
    ast.Constant | ast.Name | ast.Attribute | ast.BinOp | ast.UnaryOp | ast.Subscript
    | ast.operator | ast.unaryop | ast.expr_context
)  # fmt: skip
#: Functions of numbers.
_NUMBERS = frozenset(
    ("int", "abs", "len", "min", "max", "str", "hash", "get_rank", "get_world_size")
)
#: Methods of a store by which exactly one rank takes an item.
_CLAIMS = ("add", "compare_set")
_RANK = "rank"
_ORDERS = ast.Lt | ast.LtE | ast.Gt | ast.GtE


def dividing_condition(divergence: Divergence, sources: Sources) -> Branch | None:
    """Return the condition that divides the iterations of a loop among the ranks.

    Args:
        divergence: a line in the loop, and the conditions that may have kept ranks from it.
        sources: the code.
    """
    scope = Scope(divergence.site, divergence.code, sources)
    is_repeated = divergence.is_repeated
    conditions = [each for each in divergence.branches if each.kind == "condition"]
    conditions += [each.condition for each in divergence.exits if is_repeated or each.is_continue]
    for line, variables in _parameters(scope) if is_repeated else _loops(scope):
        place = _Place(scope, variables)
        for condition in conditions:
            if condition.line > line and any(map(place.divides, _tests(condition))):
                return condition
    return None


def _parameters(scope: Scope) -> Iterator[tuple[int, frozenset[str]]]:
    """The line of the function that a loop calls, and its parameters."""
    function = function_at(scope.code.statements, scope.site.line)
    if function is not None:
        names = {each.arg for each in (*function.args.posonlyargs, *function.args.args)}
        yield function.lineno, frozenset(name for name in names if not names_ranks(name))


def _loops(scope: Scope) -> Iterator[tuple[int, frozenset[str]]]:
    """The line of each loop around a line, and the names that differ in its iterations.

    It gives them a value, or its body counts by them.
    """
    for loop in ast.walk(ast.Module(scope.code.statements, [])):
        if isinstance(loop, ast.For) and scope.site.line in lines_of(loop):
            counts = (
                each.target.id
                for each in ast.walk(loop)
                if isinstance(each, ast.AugAssign)
                and isinstance(each.target, ast.Name)
                and isinstance(each.value, ast.Constant)
            )
            yield loop.lineno, frozenset((*names_in(loop.target), *counts))


def _tests(branch: Branch) -> Iterator[ast.expr]:
    if branch.test is not None:
        yield branch.test
    if branch.other is not None:
        yield from _tests(branch.other)


@dataclass(frozen=True)
class _Place:
    """A line in a loop."""

    scope: Scope
    variables: frozenset[str]  #: that differ from iteration to iteration
    steps: int = _MAX_STEPS

    def divides(self, test: ast.expr) -> bool:  # noqa: PLR0911 - one for each kind
        """Whether a condition divides the iterations among the ranks."""
        match test:
            case ast.BoolOp(values=parts):
                return any(map(self.divides, parts))
            case ast.UnaryOp(operand=part) | ast.Call(func=ast.Name(id="bool"), args=[part]):
                return self.divides(part)
            case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr(), right=right):
                return self.divides(left) or self.divides(right)
            case ast.IfExp(test=inner, body=body, orelse=other):
                return any(map(self.divides, (inner, body, other)))
            case ast.Name(id=name) if (value := self._value(name)) is not None:
                return self._further().divides(value)
            case ast.Subscript(value=ast.Name(id=name), slice=index) if isinstance(
                items := self._value(name), ast.ListComp
            ):
                mine = frozenset(
                    name for each in items.generators for name in names_in(each.target)
                )
                place = replace(self._further(), variables=self.variables | mine)
                varies = self._is_number(index) and bool(self._names(index) - {_RANK})
                return varies and place.divides(items.elt)
            case _:
                return self._compares(test) or any(map(self._claims, self._walk(test)))

    def _compares(self, test: ast.expr) -> bool:
        """Whether one comparison of numbers has a variable and the rank."""
        numbers: Sequence[ast.expr] = [test]
        items: Sequence[ast.expr] = []
        match test:
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=items):
                numbers = [left]
            case ast.Compare(left=left, ops=ops, comparators=others):
                numbers = [left, *others]
                is_order = any(isinstance(op, _ORDERS) for op in ops)
                if is_order and not any(self._names(each) == {_RANK} for each in numbers):
                    return False  # ``step + 2 * rank > 3`` compares a value with a limit
            case ast.Call(func=ast.Name(), args=numbers, keywords=[]):
                pass  # ``is_mine(i, rank)``
            case _:
                pass
        names = self._names(*numbers, *items)
        return _RANK in names and len(names) > 1 and all(map(self._is_number, numbers))

    def _is_number(self, node: ast.expr) -> bool:
        return all(
            isinstance(each, _PARTS)
            or (isinstance(each, ast.Call) and called(each) in _NUMBERS)
            or (isinstance(each, ast.List | ast.Tuple) and not self._names(each))
            for each in self._walk(node)
        )

    def _claims(self, node: ast.AST) -> bool:
        """Whether a rank takes the item of an iteration in a store: ``store.add(key, 1)``."""
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _CLAIMS
            and any(self.variables & names_in(each) for each in node.args)
        )

    def _names(self, *nodes: ast.AST) -> set[str]:
        """The variables, and the rank, that expressions are made of."""
        names = {
            _RANK if self._is_rank(each) else each.id if isinstance(each, ast.Name) else ""
            for node in nodes
            for each in self._walk(node)
        }
        return names & {*self.variables, _RANK}

    def _walk(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes of an expression, and of the values of its names; a rank has no parts."""
        yield node
        if isinstance(node, ast.Name):
            value = None if self._is_rank(node) else self._value(node.id)
            if value is not None:
                yield from self._further()._walk(value)
        elif not self._is_rank(node):
            for part in ast.iter_child_nodes(node):
                yield from self._walk(part)

    def _is_rank(self, node: ast.AST) -> bool:
        is_variable = isinstance(node, ast.Name) and node.id in self.variables
        is_name = isinstance(node, ast.Name | ast.Attribute) and not is_variable
        return is_name and names_ranks(ast.unparse(node))

    def _value(self, name: str) -> ast.expr | None:
        if not self.steps or name in self.variables:
            return None
        definition = self.scope.definition(name)
        return None if definition is None else definition.value

    def _further(self) -> "_Place":
        return replace(self, steps=self.steps - 1)
