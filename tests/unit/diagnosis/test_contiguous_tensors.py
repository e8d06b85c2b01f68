"""The next step after a mismatch of strides names the tensor, its ranks and the line."""

import pytest

from nbddp.controller.diagnosis.contiguous_tensors import contiguous_step
from nbddp.wire.flight_recorder import Operation, Signature, Site

OTHERWISE = ((1, 2),)
BEGIN = "Pass contiguous tensors on all ranks of the group"
END = ": elements are sent in the order of memory."


def call(
    source: str,
    strides: tuple[tuple[int, ...], ...] = OTHERWISE,
    *,
    op: str = "all_reduce",
    line: int = 2,
) -> Operation:
    site = Site(file="<cell>", line=line, function="<module>", source=source, cell=3)
    return Operation(1, "0", Signature("collective", op, strides=strides), "scheduled", site=site)


@pytest.mark.parametrize(
    ("source", "copy"),
    [
        ("dist.all_reduce(t)", "`t = t.contiguous()`"),
        ("handle = all_reduce(tensor=p.grad, op=SUM)", "`p.grad = p.grad.contiguous()`"),
        ("dist.all_reduce(x.t())", "with a copy by `.contiguous()`"),
        ("dist.all_reduce(", "with a copy by `.contiguous()`"),
        ("dist.all_reduce(a); dist.all_reduce(b)", "with a copy by `.contiguous()`"),
        ("dist.all_reduce()", "with a copy by `.contiguous()`"),
        ("step(x)", "with a copy by `.contiguous()`"),
    ],
)
def test_the_tensor_is_named_where_the_call_shows_its_name(source: str, copy: str):
    step = contiguous_step({0: call(source, ()), 1: call(source)})
    assert step == f"{BEGIN}, on rank 1 {copy} before cell [3], line 2{END}"


def test_ranks_are_grouped_by_their_lines():
    calls = {
        0: call("dist.all_reduce(t)"),
        1: call("dist.all_reduce(u)", line=4),
        2: call("dist.all_reduce(t)"),
    }
    assert contiguous_step(calls) == (
        f"{BEGIN}, on ranks 0,2 `t = t.contiguous()` before cell [3], line 2, on rank 1 "
        f"`u = u.contiguous()` before cell [3], line 4{END}"
    )


def test_what_is_not_known_is_not_said():
    assert contiguous_step({1: call("", line=0)}) == (
        f"{BEGIN}, on rank 1 with a copy by `.contiguous()`{END}"
    )
    scatter = call("dist.scatter(out, parts, src=0)", op="scatter")
    assert "`out" not in contiguous_step({0: scatter})
