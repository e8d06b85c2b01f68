"""A collective inside a `try`: all ranks skip it together; tests/pool runs such a change."""

import pytest

from nbddp.controller.diagnosis import Code
from nbddp.controller.diagnosis.guarded_calls import skipped_after_error
from tests.support.changes import apply_change


def changed(code: str, call: str = "dist.all_reduce(x)") -> str:
    """The code after the change; empty: there is none."""
    line = next(n for n, text in enumerate(code.splitlines(), 1) if call in text)
    change = skipped_after_error(Code(code), line)
    return apply_change(code, change) if change else ""


def test_the_call_moves_behind_the_try():
    code = """\
for i in range(4):
    try:
        x = load(i)
        dist.all_reduce(x)
        print(x)
    except OSError as error:
        print("skipped", error)
    total += x"""
    assert (
        changed(code)
        == """\
for i in range(4):
    try:
        x = load(i)
        ok = torch.tensor(1, device=device)
    except OSError as error:
        print("skipped", error)
        ok = torch.tensor(0, device=device)
    dist.all_reduce(ok, op=dist.ReduceOp.MIN)
    if ok:
        dist.all_reduce(x)
        print(x)
    total += x
"""
    )


def test_each_handler_and_long_parts():
    code = """\
try:
    a = 1
    b = 2
    x = load(a, b)
    dist.all_reduce(x)
except OSError:
    c = 1
    pass
except ValueError:
    pass"""
    lines = skipped_after_error(Code(code), 5)
    assert [line.source for line in lines if line.change == "same"] == [
        *("except OSError:", "    ...", "    pass", "except ValueError:", "    pass"),
    ]
    assert changed(code).count("    ok = torch.tensor(0, device=device)\n") == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    x = load(i)\n", ""),  # nothing before the call raises
        ("load(i)", "dist.barrier()"),  # ranks would wait there, too
        ("dist.all_reduce(x)", "dist.all_reduce(x, group=tp)"),
        ("dist.all_reduce(x)", "w = dist.all_reduce(x, async_op=True)"),
        ("dist.all_reduce(x)", "dist.all_reduce(x)\n    use(x)"),
        ("pass", "raise"),
        ("pass", "dist.all_reduce(y)"),
        ("    pass", "    pass\nfinally:\n    close()"),
        (":\n    pass", ": pass"),  # the flag would have no line of its own
        ("    pass", "    pass\nelse:\n    go()"),
        ("load(i)", "load(ok)"),
    ],
)
def test_a_try_that_is_not_simple_is_left(old: str, new: str):
    code = "try:\n    x = load(i)\n    dist.all_reduce(x)\nexcept OSError:\n    pass"
    assert changed(code)
    assert not changed(code.replace(old, new), "dist.all_reduce(x")
