"""Tensors of different lengths in one collective; tests/pool runs the changes that are made."""

import pytest

from tests.support.changes import apply_change
from tests.support.looks import CELL, Ranks, only

_MAKE = "out = [torch.empty_like(x) for _ in range(world_size)]\n"
_ALL_GATHER = f"{_MAKE}dist.all_gather(out, x)"
_GATHER = _ALL_GATHER.replace("dist.all_gather(out, x)", "dist.gather(x, gather_list=out, dst=0)")


def finding(code: str, op: str = "all_gather", *shapes: tuple[int, ...]):
    pool = Ranks(3)
    pool.code[CELL] = code
    line = next(n for n, text in enumerate(code.splitlines(), 1) if "dist." in text)
    for rank, shape in enumerate(shapes or ((2,), (3,), (2,))):
        pool[rank].blocked(op, line=line, input_sizes=(shape,), root=0 if op == "broadcast" else -1)
    return only(pool)


def changed(code: str, op: str = "all_gather", *shapes: tuple[int, ...]) -> str:
    change = finding(code, op, *shapes).change
    return "" if change is None else apply_change(code, change.lines)


def test_tensors_are_padded_before_their_list_is_made():
    more = changed(f"y = 1\n# a list\n{_ALL_GATHER}", "all_gather", (2, 4), (3, 4), (3, 4))
    assert more.splitlines() == [
        "y = 1",
        "longest = torch.tensor(len(x), device=x.device)",
        "dist.all_reduce(longest, op=dist.ReduceOp.MAX)",
        "x = torch.cat([x, x.new_zeros(int(longest) - len(x), *x.shape[1:])])",
        "# a list",
        *_ALL_GATHER.splitlines(),
    ]
    assert "x.new_zeros(int(longest) - len(x))])" in changed(_GATHER, "gather")


@pytest.mark.parametrize(
    "code",
    [
        "dist.all_gather(out, x)",
        "out = [torch.empty(2)] * world_size\ndist.all_gather(out, x)",
        f"{_MAKE}x = x + 1\ndist.all_gather(out, x)",
        f"{_ALL_GATHER}\nprint(x)",
        f"longest = 1\n{_ALL_GATHER}",
        f"{_MAKE}dist.all_gather(out, x, group=g)",
        f"{_MAKE}dist.all_gather(out, x[1:])",
        f"{_MAKE}h = dist.all_gather(out, x, async_op=True)",
        f"{_MAKE}dist.all_gather(out, x); y = 1",
        f"y = 1; {_ALL_GATHER}",
        f"{_MAKE}all_gather(out, x)  # dist.",
        "for _ in y:\n    " + _ALL_GATHER.replace("\n", "\n    "),  # longer the next time, too
        "if 1: dist.all_gather(out, x)",
    ],
)
def test_code_in_which_padding_would_change_more(code: str):
    assert changed(code) == ""


def test_a_tensor_of_an_iteration_is_padded():
    assert changed("for x in y:\n    " + _ALL_GATHER.replace("\n", "\n    "))


@pytest.mark.parametrize(
    ("op", "shapes", "advice"),
    [
        ("all_gather", ((2,), (3,)), "Pad each tensor to the longest one before, or use"),
        ("gather", ((2, 2), (3, 2)), "or use gather_object."),
        ("all_reduce", ((2,), (3,)), "For a mean of all items, reduce their sum and their number."),
        ("broadcast", ((2,), (3,)), "Broadcast the length of the tensor of rank 0 first, and let"),
        ("reduce_scatter", ((2,), (3,)), ""),
        ("all_gather", ((2, 2), (2, 3)), ""),
        ("all_gather", ((2,), ()), ""),
    ],
)
def test_advice_about_lengths(op: str, shapes: tuple[tuple[int, ...], ...], advice: str):
    step = finding("dist.x()", op, *shapes, shapes[0]).next_step
    assert advice in step
    assert advice or step.endswith("group.")
