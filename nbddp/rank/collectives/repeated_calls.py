"""The call of the user's code that has led to a stopped operation, read again: ``retry``.

Runs in: the rank process, in the thread that has stopped.

The arguments of a call exist before its operation stops. ``run x = x.reshape(3)`` binds a name, and
the call still has the old tensor. So the call itself is made again, from the same frame: torch
checks its arguments, and its operation stops like any other.
"""

import ast
import linecache
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch.distributed as dist

from nbddp.errors import CollectiveRefusedError
from nbddp.rank import torch_private
from nbddp.rank.collectives.recording.call_sites import OWN_FOLDER

#: Functions of `torch.distributed` that issue one operation. They return None, a handle, or
#: (`recv`) the source.
_NAMES = (
    "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single",
    "barrier", "broadcast", "gather", "irecv", "isend", "recv", "reduce", "reduce_scatter",
    "reduce_scatter_tensor", "scatter", "send",
)  # fmt: skip
#: Expressions that give the same when they are evaluated again; parts of them are checked, too.
_REPEATABLE = (
    ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Constant, ast.Tuple, ast.List,
    ast.Starred, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.keyword,
    ast.JoinedStr, ast.FormattedValue, ast.expr_context, ast.operator, ast.unaryop, ast.boolop,
    ast.cmpop,
)  # fmt: skip
#: Functions and methods that change nothing, and issue no operation.
_HARMLESS = frozenset({
    "clone", "contiguous", "detach", "dim", "empty_like", "flatten", "float", "get_group",
    "get_rank", "get_world_size", "int", "len", "max", "min", "numel", "ones_like", "range",
    "reshape", "size", "tensor", "to", "view", "zeros_like",
})  # fmt: skip
#: The name of a function that takes the arguments of a call.
_CATCH = "__nbddp_arguments"
_TYPED = "type the call behind retry, as in `retry dist.all_reduce(x)`"


@dataclass(frozen=True)
class RepeatedCall:
    """A call of `torch.distributed` with arguments that were evaluated now."""

    replaced: Callable[..., Any]  #: the function whose call has stopped
    function: Callable[..., Any]
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]

    def __call__(self) -> Any:
        """Make the call."""
        return self.function(*self.args, **self.keywords)


def read_call(
    frame: types.FrameType | None,
    inside: types.FrameType | None,
    known: Mapping[str, Any],
    typed: str = "",
) -> RepeatedCall:
    """Evaluate the function and the arguments of a stopped call again.

    Args:
        frame: of the user's line.
        inside: the innermost frame of the call, from which ``frame`` is looked for outwards.
        known: names that are defined in every cell.
        typed: another call that the user has typed; empty: the call as it stands in the line.

    Raises:
        CollectiveRefusedError: the call cannot be made again.
        Exception: the user's expressions raise it.
    """
    written = None if frame is None else written_call(frame.f_code, frame.f_lasti)
    if frame is None or written is None:
        raise CollectiveRefusedError(
            "the text of the call is not known. Next: step, or skip where that is legal"
        )
    names = {**known, **frame.f_globals, **frame.f_locals}
    text = ast.unparse(written)
    replaced: Any = _evaluate(written.func, names) if _is_path(written.func) else None
    if not _is_direct(replaced, _codes_between(frame, inside)):
        raise CollectiveRefusedError(
            f"`{text}` is no direct call of an operation: code inside it, or a thread of it, "
            "issues the operation with tensors of its own. Next: run changes tensors in place, as "
            "in `run x.zero_()`; or quit, and change the code"
        )
    call = parse_call(typed) if typed else written
    if not typed and (part := unrepeatable(written)):
        raise CollectiveRefusedError(
            f"`{part}` in `{text}` would run a second time, and may give something else. Next: "
            f"{_TYPED}"
        )
    function = _evaluate(call.func, names)
    if not _issues_one_operation(function):
        raise CollectiveRefusedError(
            f"`{ast.unparse(call.func)}` is no function of torch.distributed with one operation. "
            f"Legal: {', '.join(_NAMES)}"
        )
    args, keywords = _evaluate_arguments(call, names)
    return RepeatedCall(replaced, function, args, keywords)


def parse_call(text: str) -> ast.Call:
    """Return the call that a text is.

    Raises:
        CollectiveRefusedError: it is none.
    """
    try:
        expression = ast.parse(f"({text})", mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise CollectiveRefusedError(f"`{text}` is no call. Next: {_TYPED}") from error
    if not isinstance(expression, ast.Call):
        raise CollectiveRefusedError(f"`{text}` is no call. Next: {_TYPED}")
    return expression


def written_call(code: types.CodeType, instruction: int) -> ast.Call | None:
    """Return the call that an instruction makes, which may have several lines; None: not known.

    Args:
        code: the code.
        instruction: offset of the instruction in it, as in `frame.f_lasti`.
    """
    positions = islice(code.co_positions(), instruction // 2, None)
    line, last_line, begin, end = next(positions, (None, None, None, None))
    if line is None or last_line is None or begin is None or end is None:
        return None
    rows = [linecache.getline(code.co_filename, at).encode() for at in range(line, last_line + 1)]
    rows[-1] = rows[-1][:end]  # positions count bytes
    rows[0] = rows[0][begin:]
    try:
        return parse_call(b"".join(rows).decode(errors="replace"))
    except CollectiveRefusedError:
        return None


def unrepeatable(call: ast.Call) -> str:
    """Return the first part of the arguments that may do something when it is evaluated; or none.

    >>> unrepeatable(parse_call("dist.send(x[0] + 1, dst=(rank + 1) % n)"))
    ''
    >>> unrepeatable(parse_call("dist.all_reduce(next(batches))"))
    'next(batches)'
    """
    for argument in (*call.args, *call.keywords):
        for node in ast.walk(argument):
            if not isinstance(node, _REPEATABLE) and not _is_harmless(node):
                return ast.unparse(node)
    return ""


def _is_harmless(node: ast.AST) -> bool:
    """Return whether a node is a call of a function whose name is known."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
        return False
    name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
    return name in _HARMLESS


def _codes_between(
    frame: types.FrameType, inside: types.FrameType | None
) -> list[types.CodeType] | None:
    """Return the code of torch's functions from the user's frame inwards; None: it has others."""
    codes: list[types.CodeType] = []
    while inside is not None and inside is not frame:
        if torch_private.is_distributed_code(inside.f_code):
            codes.append(inside.f_code)
        elif not inside.f_code.co_filename.startswith(OWN_FOLDER):
            return None
        inside = inside.f_back
    return None if inside is None else codes[::-1]


def _is_direct(function: Any, codes: list[types.CodeType] | None) -> bool:
    """Return whether the stopped operation is the one that a function issues, with its tensors."""
    if codes is None or not _issues_one_operation(function):
        return False
    own = list(_wrapped_codes(function))
    return codes[: len(own)] == own


def _wrapped_codes(function: Any) -> Iterator[types.CodeType]:
    while function is not None:
        yield function.__code__
        function = getattr(function, "__wrapped__", None)


def _is_path(node: ast.expr) -> bool:
    """Return whether an expression is a name with attributes."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _issues_one_operation(function: object) -> bool:
    return any(getattr(dist, name, None) is function for name in _NAMES)


def _evaluate(node: ast.expr, names: dict[str, Any]) -> Any:
    return eval(_compiled(node), names)  # noqa: S307 - the user's code


def _evaluate_arguments(
    call: ast.Call, names: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    catching = ast.Call(ast.Name(_CATCH, ast.Load()), call.args, call.keywords)
    caught: tuple[tuple[Any, ...], dict[str, Any]] = _evaluate(
        catching, names | {_CATCH: lambda *args, **keywords: (args, keywords)}
    )
    return caught


def _compiled(node: ast.expr) -> types.CodeType:
    return compile(ast.fix_missing_locations(ast.Expression(node)), "<step>", "eval")
