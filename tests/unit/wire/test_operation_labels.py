"""The name of an operation is the same in errors, cards, tables and records."""

import pytest

from nbddp.wire.flight_recorder.schema import (
    RENDEZVOUS,
    Operation,
    OperationKind,
    OperationState,
    Signature,
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


def test_the_tag_is_left_out_where_it_is_told_beside():
    assert operation("send", "send", peer=1, tag=3).label(has_tag=False) == "send to rank 1"


def test_only_init_process_group_is_a_rendezvous():
    assert operation("store", RENDEZVOUS, ("all 2 ranks at tcp://here:1",)).is_rendezvous
    assert not operation("creation", RENDEZVOUS).is_rendezvous
    assert not operation("store", "store.wait", ("all 2 ranks at tcp://here:1",)).is_rendezvous
