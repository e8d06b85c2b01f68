"""Whether operations have combined what ranks trained, from their shapes."""

from types import SimpleNamespace
from typing import Any

import torch

from nbddp.rank.collectives.sanitizer.trained_shapes import TrainedShapes, combines
from nbddp.wire.flight_recorder import Operation, Signature


def operation(op: str, *sizes: tuple[int, ...], kind: Any = "collective") -> Operation:
    signature = Signature(kind, op, input_sizes=sizes, tensors=len(sizes))
    return Operation(record_id=1, pg_id="0", signature=signature, state="completed")


def trained() -> TrainedShapes:
    shapes = TrainedShapes()
    parameters = [torch.empty(2, 3), torch.empty(2)]
    shapes.note(SimpleNamespace(param_groups=[{"params": parameters}]))
    return shapes


def test_a_barrier_and_a_value_of_one_rank_combine_nothing():
    for op in ("barrier", "broadcast", "scatter"):
        assert not combines(operation(op, (2, 3)))
    assert combines(operation("all_reduce", ()))
    assert combines(operation("send", (2, 3), kind="send"))
    assert not combines(operation("wait", kind="store"))
    assert combines(None)  # its record is gone


def test_all_parameters_or_a_flat_copy_are_combined():
    assert trained().are_in([operation("all_reduce", (2,)), operation("all_reduce", (2, 3))])
    assert trained().are_in([operation("all_reduce", (8,))])
    assert trained().are_in([operation("all_reduce_coalesced", (4,), (4,))])


def test_a_score_of_the_shape_of_one_parameter_is_not():
    assert not trained().are_in([operation("all_reduce", (2,)), operation("broadcast", (2, 3))])


def test_without_an_optimizer_each_combining_operation_counts():
    assert TrainedShapes().are_in([operation("all_reduce", ())])
    assert not TrainedShapes().are_in([operation("barrier")])
