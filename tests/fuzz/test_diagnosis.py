"""Any nonsense that ranks report gives a report, never an error."""

import dataclasses
import random

import msgspec
import pytest

from nbddp.controller.diagnosis.analysis import compare_records, diagnose
from nbddp.controller.diagnosis.rank_view import RankView
from nbddp.wire.flight_recorder.schema import (
    GroupInfo,
    Mismatch,
    Operation,
    RankLook,
    Signature,
    ThreadLook,
    Wait,
)
from tests.fuzz.nonsense import Nonsense

_RANKS = 3


def senseless_view(nonsense: Nonsense, rng: random.Random, rank: int) -> RankView:
    """A rank that waits for operations of groups that cannot be."""
    look: RankLook = nonsense.message(RankLook, rank=rank, activity="running", run_id="r")
    records = tuple(each.record_id for each in look.operations)
    waiting = ThreadLook(
        name="MainThread",
        is_main=True,
        wait=Wait(kind="operation", record_ids=records, since_ns=rng.choice((-1, 0, 2**62))),
    )
    operations = tuple(
        msgspec.structs.replace(each, state="scheduled", pg_id="0", collective_seq_id=1)
        for each in look.operations
    )
    groups = tuple(msgspec.structs.replace(each, pg_id="0") for each in look.groups)
    look = msgspec.structs.replace(look, threads=(waiting,), operations=operations, groups=groups)
    wrong: Mismatch = nonsense.message(Mismatch, rank=rank)
    mine, theirs = (
        msgspec.structs.replace(each, pg_id="0", collective_seq_id=1)
        for each in (wrong.mine, wrong.theirs)
    )
    wrong = msgspec.structs.replace(wrong, mine=mine, theirs=theirs)
    return RankView(
        rank=rank,
        state=rng.choice(("running", "running", "idle", "dead")),
        look=look,
        mismatches=rng.choice(((), (wrong,))),
    )


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_diagnosis_of_nonsense_is_a_report(seed: int):
    rng = random.Random(seed)
    nonsense = Nonsense(rng, _RANKS, ("r", "0", "1", "7"))
    for _ in range(100):
        views = {rank: senseless_view(nonsense, rng, rank) for rank in range(_RANKS)}
        report = diagnose(views, now_ns=1, run_id="r")
        assert report.run_id == "r"
        compare_records(views, run_id=rng.choice(("", "r")))


def waits_in(rank: int, signature: Signature, ranks: tuple[int, ...]) -> RankView:
    operation = Operation(
        record_id=1, pg_id="0", signature=signature, state="scheduled", collective_seq_id=1
    )
    wait = Wait(kind="operation", record_ids=(1,), since_ns=0)
    return RankView(
        rank=rank,
        state="running",
        look=RankLook(
            rank=rank,
            pid=1,
            activity="running",
            version=1,
            time_ns=1,
            run_id="r",
            threads=(ThreadLook(name="MainThread", is_main=True, wait=wait),),
            groups=(GroupInfo.of(pg_id="0", name="0", ranks=ranks),),
            operations=(operation,),
        ),
    )


@pytest.mark.parametrize("stranger", [2, 7, -1, 2**62])
def test_a_group_may_have_members_that_are_no_ranks_of_the_pool(stranger: int):
    creation = Signature(kind="creation", op="new_group", keys=("0", "1", str(stranger)))
    reduction = Signature(kind="collective", op="all_reduce")
    for signature in (creation, reduction):
        views = {rank: waits_in(rank, signature, (0, 1, stranger)) for rank in (0, 1)}
        report = diagnose(views, now_ns=1, run_id="r")
        assert not report.verdict  # of the third nothing is known
    peer = msgspec.structs.replace(reduction, op="broadcast")
    one = waits_in(0, reduction, (0, stranger))
    assert one.look is not None
    mine = one.look.operations[0]
    wrong = Mismatch(
        rank=0,
        peer=stranger,
        mine=mine,
        theirs=msgspec.structs.replace(mine, signature=peer),
        fields=("op",),
    )
    views = {0: dataclasses.replace(one, mismatches=(wrong,)), 1: RankView(rank=1, state="idle")}
    assert diagnose(views, now_ns=1, run_id="r").run_id == "r"
