"""Finds loops whose iterations the code divides among the ranks: ``if i % world_size == rank:``.

Runs in: the notebook's process. Pure. Ranks are in different iterations of such a loop on purpose.
A condition divides them if one comparison has the loop's variable and the rank. ``rank == 1 and
i == 2`` compares both with constants: one rank leaves out an iteration. Values of tensors divide
nothing, whatever they are made of. In a function that the loop calls, its parameters stand for the
variable.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from nbddp.controller.diagnosis.code_places import called, lines_of, names_in
from nbddp.controller.diagnosis.control_flow import Branch, Sources
from nbddp.controller.diagnosis.definitions import Scope, function_at
from nbddp.controller.diagnosis.divergence import Divergence, names_ranks

#: Names that are followed, one after another.
_MAX_STEPS = 6
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
    conditions = [each for each in divergence.branches if each.kind == "condition"]
    if divergence.is_repeated:
        leave = [each.condition for each in divergence.exits]
        return _dividing_parameter([*conditions, *leave], scope)
    conditions += [leave.condition for leave in divergence.exits if leave.is_continue]
    dividing = (
        _dividing([each for each in conditions if each.line > loop.lineno], loop, scope)
        for loop in _loops(scope)
    )
    return next((each for each in dividing if each is not None), None)


def _dividing_parameter(conditions: Iterable[Branch], scope: Scope) -> Branch | None:
    """The condition that compares a parameter with the rank, in a function that a loop calls."""
    function = function_at(scope.code.statements, scope.site.line)
    if function is None:
        return None
    names = {each.arg for each in (*function.args.posonlyargs, *function.args.args)}
    place = _Place(scope, frozenset(name for name in names if not names_ranks(name)))
    return next((each for each in conditions if any(map(place.divides, _tests(each)))), None)


def _loops(scope: Scope) -> Iterator[ast.For]:
    """The loops around a line."""
    for node in ast.walk(ast.Module(scope.code.statements, [])):
        if isinstance(node, ast.For) and scope.site.line in lines_of(node):
            yield node


def _dividing(conditions: Iterable[Branch], loop: ast.For, scope: Scope) -> Branch | None:
    place = _Place(scope, frozenset(_variables(loop)))
    divides = (each for each in conditions if any(map(place.divides, _tests(each))))
    return next(divides, None)


def _tests(branch: Branch) -> Iterator[ast.expr]:
    if branch.test is not None:
        yield branch.test
    if branch.other is not None:
        yield from _tests(branch.other)


def _variables(loop: ast.For) -> Iterator[str]:
    """The names that a loop gives a value, and those by which its body counts."""
    yield from names_in(loop.target)
    for node in ast.walk(loop):
        match node:
            case ast.AugAssign(target=ast.Name(id=name), value=ast.Constant()):
                yield name
            case _:
                pass


@dataclass(frozen=True)
class _Place:
    """A line in a loop."""

    scope: Scope
    variables: frozenset[str]  #: that differ from iteration to iteration
    steps: int = _MAX_STEPS

    def divides(self, test: ast.expr) -> bool:  # noqa: PLR0911 - one for each kind
        """Whether a condition divides the iterations among the ranks."""
        match test:
            case ast.BoolOp(values=values):
                return any(map(self.divides, values))
            case ast.UnaryOp(operand=operand):
                return self.divides(operand)
            case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr(), right=right):
                return self.divides(left) or self.divides(right)
            case ast.IfExp(test=inner, body=body, orelse=other):
                return any(map(self.divides, (inner, body, other)))
            case ast.Call(func=ast.Name(id="bool"), args=[operand]):
                return self.divides(operand)
            case ast.Name(id=name) if (value := self._value(name)) is not None:
                return self._further().divides(value)
            case ast.Subscript(value=ast.Name(id=name), slice=index) if isinstance(
                value := self._value(name), ast.ListComp
            ):
                targets = [each.target for each in value.generators]
                names = frozenset(name for target in targets for name in names_in(target))
                place = replace(self._further(), variables=self.variables | names)
                return self._varies(self._parts(index)) and place.divides(value.elt)
            case _:
                compared = self._compared(test)
                return self._claims(test) or (self._varies(compared) and _RANK in compared)

    def _compared(self, test: ast.expr) -> set[str]:
        """The variables, and the rank, of one comparison; none where it is not about numbers."""
        match test:
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[items]):
                parts = self._parts(left)
                return set() if parts is None else parts | self._parts_of_items(items)
            case ast.Compare(left=left, ops=ops, comparators=others):
                is_order = any(isinstance(op, _ORDERS) for op in ops)
                if is_order and not any(self._parts(each) == {_RANK} for each in (left, *others)):
                    return set()  # ``step + 2 * rank > 3`` compares a value with a limit
                return self._all_parts([left, *others]) or set()
            case ast.Call(func=ast.Name(), args=arguments, keywords=[]):
                return self._all_parts(arguments) or set()  # ``is_mine(i, rank)``
            case _:
                return self._parts(test) or set()

    def _parts(self, node: ast.expr) -> set[str] | None:  # noqa: PLR0911 - one for each kind
        """The variables, and the rank, that a number is made of; None: it may be anything."""
        match node:
            case ast.Constant():
                return set()
            case ast.Name(id=name) if name in self.variables:
                return {name}
            case ast.Name() | ast.Attribute() if names_ranks(ast.unparse(node)):
                return {_RANK}
            case ast.Name(id=name):
                value = self._value(name)
                return set() if value is None else self._further()._parts(value)
            case ast.Attribute(value=owner):
                return self._parts(owner)
            case ast.BinOp(left=left, right=right):
                return self._all_parts([left, right])
            case ast.UnaryOp(operand=operand):
                return self._parts(operand)
            case ast.Subscript(value=items, slice=index):
                return self._all_parts([items, index])
            case ast.List(elts=items) | ast.Tuple(elts=items) if not any(map(self._parts, items)):
                return set()
            case ast.Call(func=function, args=arguments) if called(node) in _NUMBERS:
                parts = self._all_parts(arguments)
                is_rank = names_ranks(ast.unparse(function))
                return parts if parts is None or not is_rank else parts | {_RANK}
            case _:
                return None

    def _all_parts(self, nodes: Iterable[ast.expr]) -> set[str] | None:
        parts: set[str] = set()
        for node in nodes:
            those = self._parts(node)
            if those is None:
                return None
            parts |= those
        return parts

    def _parts_of_items(self, items: ast.expr) -> set[str]:
        """The variables, and the rank, that a list or a set is made of."""
        parts = names_in(items) & self.variables
        if names_ranks(ast.unparse(items)):
            parts |= {_RANK}
        for name in names_in(items) - parts:
            if (value := self._value(name)) is not None:
                parts |= self._further()._parts_of_items(value)
        return parts

    def _claims(self, test: ast.expr) -> bool:
        """Whether a rank takes the item of an iteration in a store: ``store.add(key, 1) == 1``."""
        nodes = list(ast.walk(test))
        for node in list(nodes):
            if isinstance(node, ast.Name) and (value := self._value(node.id)) is not None:
                nodes += ast.walk(value)
        return any(
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _CLAIMS
            and any(self._varies(names_in(each)) for each in node.args)
            for node in nodes
        )

    def _varies(self, parts: set[str] | None) -> bool:
        return bool(parts) and not self.variables.isdisjoint(parts or ())

    def _value(self, name: str) -> ast.expr | None:
        if not self.steps or name in self.variables:
            return None
        definition = self.scope.definition(name)
        return None if definition is None else definition.value

    def _further(self) -> "_Place":
        return replace(self, steps=self.steps - 1)
