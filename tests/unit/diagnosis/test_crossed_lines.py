"""The name of the tensor in the line of a call, by which calls of ranks are compared."""

import pytest

from nbddp.controller.diagnosis.crossed_lines import tensor_of
from nbddp.wire.flight_recorder import Operation, Signature, Site


@pytest.mark.parametrize(
    ("source", "tensor"),
    [
        ("dist.all_reduce(grad)", "grad"),
        ("work = dist.all_reduce(model.weight.grad, async_op=True)", "model.weight.grad"),
        ("all_reduce(parts[0])", "parts[0]"),
        ("if rank == 0: dist.all_reduce(x)", "x"),
        ("dist.all_reduce(tensor=x, op=dist.ReduceOp.MAX)", "x"),
        ("for x in xs: dist.all_reduce(x)", "x"),
        ("dist.all_reduce(torch.zeros(2))", ""),
        ("dist.all_reduce(x * 2)", ""),
        ("dist.all_reduce(x), dist.all_reduce(y)", ""),
        ("dist.all_reduce(", ""),
        ("with scope(dist.all_reduce(x)):", "x"),
        ("loss.backward()", ""),
        ("", ""),
    ],
)
def test_the_tensor_of_a_line(source: str, tensor: str):
    operation = Operation(
        record_id=1,
        pg_id="0",
        signature=Signature(kind="collective", op="all_reduce"),
        state="completed",
        site=Site(line=1, source=source),
    )
    assert tensor_of(operation) == tensor
