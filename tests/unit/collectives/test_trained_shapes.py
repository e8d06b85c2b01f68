"""Whether operations have combined what ranks trained, from their shapes."""

from types import SimpleNamespace
from typing import Any

import torch

from nbddp.rank.collectives.sanitizer.trained_shapes import Combined, TrainedShapes, combines
from nbddp.wire.flight_recorder import Operation, Signature, Site


def operation(
    op: str, *sizes: tuple[int, ...], kind: Any = "collective", origin: str = "", group: str = "0"
) -> Operation:
    signature = Signature(kind=kind, op=op, input_sizes=sizes, tensors=len(sizes))
    return Operation(
        record_id=1,
        pg_id=group,
        signature=signature,
        state="completed",
        site=Site(line=1, origin=origin),
    )


def trained() -> TrainedShapes:
    shapes = TrainedShapes()
    parameters = [torch.empty(2, 3), torch.empty(2)]
    shapes.note(SimpleNamespace(param_groups=[{"params": parameters}]))
    return shapes


def groups(shapes: TrainedShapes, *operations: Operation, batch: bool = True) -> set[str]:
    combined = Combined()
    combined.note(operations, are_of_a_batch=batch)
    return set(shapes.groups_in(combined))


def test_a_barrier_and_a_value_of_one_rank_combine_nothing():
    for op in ("barrier", "broadcast", "scatter"):
        assert not combines(operation(op, (2, 3)))
    assert combines(operation("all_reduce", ()))
    assert combines(operation("send", (2, 3), kind="send"))
    assert not combines(operation("wait", kind="store"))
    assert combines(None)  # its record is gone


def test_all_parameters_or_a_flat_copy_are_combined():
    assert groups(trained(), operation("all_reduce", (2,)), operation("all_reduce", (2, 3)))
    assert groups(trained(), operation("all_reduce", (8,)))
    assert groups(trained(), operation("all_reduce_coalesced", (4,), (4,)))


def test_buckets_of_one_batch_are_one_copy():
    buckets = [operation("all_reduce", (4,)) for _ in range(2)]
    assert groups(trained(), *buckets)
    assert not groups(trained(), *buckets, batch=False)
    assert not groups(trained(), operation("all_reduce", (4, 1)), operation("all_reduce", (4, 1)))


def test_a_score_of_the_shape_of_one_parameter_is_not():
    assert not groups(trained(), operation("all_reduce", (2,)), operation("broadcast", (2, 3)))


def test_gradients_of_a_library_are_known_by_their_origin():
    ddp = operation("all_reduce", (3,), origin="ddp-gradients", group="1")
    fsdp = operation("reduce_scatter", (3,), origin="fsdp-gradients", group="2")
    assert groups(trained(), ddp, fsdp) == {"1", "2"}
    combined = Combined()
    combined.note([fsdp], are_of_a_batch=True)
    assert not combined.has_ddp
    combined.note([ddp], are_of_a_batch=True)
    assert combined.has_ddp


def test_other_operations_of_torch_and_messages_combine_no_gradients():
    for origin in ("DTensor", "torch.distributed.pipelining", "fsdp-parameters"):
        assert not groups(trained(), operation("all_reduce", (8,), origin=origin))
    assert not groups(trained(), operation("send", (8,), kind="send"))


def test_without_an_optimizer_each_tensor_counts_but_no_single_number():
    assert groups(TrainedShapes(), operation("all_reduce", (1,)))
    assert not groups(TrainedShapes(), operation("all_reduce", ()))
    assert not groups(TrainedShapes(), operation("barrier"))
