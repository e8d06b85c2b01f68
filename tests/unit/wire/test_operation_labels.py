"""The name of an operation is the same in errors, cards, tables and records."""

import re

import msgspec
import pytest

from nbddp.wire.flight_recorder.schema import (
    RENDEZVOUS,
    Operation,
    OperationKind,
    OperationState,
    Signature,
    Site,
)

SCHEDULED: OperationState = "scheduled"


def operation(kind: OperationKind, op: str, keys: tuple[str, ...] = (), **fields: int) -> Operation:
    return Operation(
        record_id=1,
        pg_id="0",
        signature=Signature(kind=kind, op=op, keys=keys),
        state=SCHEDULED,
        **fields,  # type: ignore[arg-type]  # numbers all
    )


@pytest.mark.parametrize(
    ("found", "label", "brief"),
    [
        (
            operation("collective", "all_reduce", collective_seq_id=17),
            "all_reduce #17",
            "all_reduce #17",
        ),
        (operation("collective", "all_reduce"), "all_reduce", "all_reduce"),
        (operation("send", "send", peer=2), "send to rank 2", "send to 2"),
        (operation("send", "send", peer=0, tag=3), "send to rank 0 (tag 3)", "send to 0"),
        (operation("recv", "recv", peer=2), "recv from rank 2", "recv from 2"),
        (operation("recv", "recv"), "recv from any rank", "recv from any"),
        (operation("recv", "recv", tag=7), "recv from any rank (tag 7)", "recv from any"),
        (operation("creation", "new_group"), "new_group", "new_group"),
        (operation("store", "store.wait", ("k",)), "store.wait('k')", "store.wait('k')"),
        (
            operation("store", "store.wait", ("a", "b", "c", "d")),
            "store.wait('a', 'b', 'c', ...)",
            "store.wait('a', 'b', 'c', ...)",
        ),
        (
            operation("store", "store.wait", ("a" * 30,)),
            f"store.wait('{'a' * 30}')",
            f"store.wait('{'a' * 20}...)",
        ),
        (
            operation("store", RENDEZVOUS, ("rank 0 at tcp://here:1",)),
            "init_process_group for rank 0 at tcp://here:1",
            "init_process_group",
        ),
    ],
)
def test_each_kind_of_operation_has_one_name(found: Operation, label: str, brief: str):
    assert found.label() == label
    assert found.label(is_brief=True) == brief


@pytest.mark.parametrize(
    ("origin", "call", "label", "brief"),
    [
        (
            "ddp-gradients",
            "loss.backward()",
            "gradient averaging in loss.backward() (all_reduce #24)",
            "all_reduce #24 (gradients)",
        ),
        (
            "parameter-check",
            f"DDP(nn.Sequential({'nn.Linear(2, 2), ' * 4}))",
            "the check of parameter shapes in DDP(...) (all_reduce #24)",
            "all_reduce #24 (parameter shapes)",
        ),
        (
            "batch-statistics",
            f"{'models.' * 8}encoder(x)",
            "SyncBatchNorm's statistics in "
            "...dels.models.models.models.models.encoder(...) (all_reduce #24)",
            "all_reduce #24 (SyncBatchNorm)",
        ),
        (
            "accelerate",
            "accelerator.gather(x)",
            "a call of accelerate in accelerator.gather(x) (all_reduce #24)",
            "all_reduce #24 (accelerate)",
        ),
        (
            "all_gather_object",
            "dist.all_gather_object(found, x)",
            "all_gather_object (all_reduce #24)",
            "all_reduce #24 (all_gather_object)",
        ),
        (
            "breakpoint",
            "dist.breakpoint(1)",
            "breakpoint (all_reduce #24)",
            "all_reduce #24 (breakpoint)",
        ),
        ("Join", "", "Join's exchange between the ranks (all_reduce #24)", "all_reduce #24 (Join)"),
    ],
)
def test_an_operation_of_a_library_is_named_by_what_the_library_did(
    origin: str, call: str, label: str, brief: str
):
    found = msgspec.structs.replace(
        operation("collective", "all_reduce", collective_seq_id=24),
        site=Site(line=1, origin=origin, call=call),
    )
    assert found.label() == label
    assert found.label(is_brief=True) == brief
    assert found.label(has_call=False) == re.sub(r" in .* \(", " (", label)


def test_a_wait_for_the_store_keeps_its_name():
    found = operation("store", "store.wait", ("k",))
    found = msgspec.structs.replace(found, site=Site(line=1, origin="Join", call="f()"))
    assert found.label() == "store.wait('k')"


def test_the_tag_is_left_out_where_it_is_told_beside():
    assert operation("send", "send", peer=1, tag=3).label(has_tag=False) == "send to rank 1"


def test_only_init_process_group_is_a_rendezvous():
    assert operation("store", RENDEZVOUS, ("all 2 ranks at tcp://here:1",)).is_rendezvous
    assert not operation("creation", RENDEZVOUS).is_rendezvous
    assert not operation("store", "store.wait", ("all 2 ranks at tcp://here:1",)).is_rendezvous
