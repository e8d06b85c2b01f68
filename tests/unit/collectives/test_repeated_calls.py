"""The call that has led to a stopped operation, read again."""

import ast
import linecache
import sys

import pytest

from nbddp.errors import CollectiveRefusedError
from nbddp.rank.collectives.repeated_calls import parse_call, read_call, unrepeatable, written_call


def call_of(source: str) -> str:
    """The text of the call of ``catch``, read while it runs."""
    calls: list[ast.Call | None] = []

    def catch(*args: object, **keywords: object) -> None:
        frame = sys._getframe(1)
        calls.append(written_call(frame.f_code, frame.f_lasti))

    file = f"<call {abs(hash(source))}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), {"catch": catch})
    (call,) = calls
    assert call is not None
    return ast.unparse(call)


@pytest.mark.parametrize(
    ("source", "text"),
    {
        "catch(1, key=2)\n": "catch(1, key=2)",
        "x = [catch(1)]; y = 2\n": "catch(1)",
        "if True: catch(\n    1,  # one\n    2,\n)\n": "catch(1, 2)",
        "ä = 'ö'; print(catch('ü', ä))\n": "catch('ü', ä)",
        "def f(y):\n    return catch(*y, **{})\nf([1])\n": "catch(*y, **{})",
        "print(catch(1), max(1, 2))\n": "catch(1)",
    }.items(),
)
def test_the_exact_call_of_a_line_is_found(source: str, text: str):
    assert call_of(source) == text


def test_code_without_a_source_has_no_call():
    code = compile("f()", "<nowhere>", "exec")
    assert written_call(code, 0) is None
    assert written_call(code.replace(co_linetable=b""), 0) is None


@pytest.mark.parametrize(
    ("text", "part"),
    {
        "dist.all_reduce(x)": "",
        "dist.all_reduce(x[0].grad[:2], op=dist.ReduceOp.MAX, group=mesh['tp'].get_group())": "",
        "dist.send(-x + 1, dst=(rank + 1) % world_size if rank else 0)": "",
        "dist.all_gather([a, *rest], x.contiguous())": "",
        "dist.all_reduce(next(batches))": "next(batches)",
        "dist.all_reduce(x.mul_(2))": "x.mul_(2)",
        "dist.all_reduce((y := x))": "(y := x)",
        "dist.all_gather([torch.empty_like(x) for _ in range(2)], x)": (
            "[torch.empty_like(x) for _ in range(2)]"
        ),
        "dist.send(x, dst=peers.pop())": "peers.pop()",
        "dist.all_reduce(make()(x))": "make()(x)",
    }.items(),
)
def test_arguments_that_may_do_something_are_found(text: str, part: str):
    assert unrepeatable(parse_call(text)) == part


@pytest.mark.parametrize("text", ["x", "x = 1", "f(", "", "f(); g()"])
def test_what_is_no_call_is_refused(text: str):
    with pytest.raises(CollectiveRefusedError, match="is no call"):
        parse_call(text)


def test_a_line_that_is_not_known_is_refused():
    with pytest.raises(CollectiveRefusedError, match="text of the call is not known"):
        read_call(None, None, {})
