"""Messages whose records were overwritten: the counts of ranks tell of them."""

from dataclasses import replace

import msgspec

from nbddp.controller.diagnosis import Report, diagnose
from nbddp.wire.flight_recorder.schema import Failure, MessageCount
from tests.support.looks import NOW, RUN, Ranks

#: Operations that are told; the others are left out.
_LAST = 4


def diagnose_counted(pool: Ranks, *, base: int = 0, tells: bool = True) -> Report:
    """The views of ranks that count their messages from ``base``."""
    views = pool.views(last=_LAST)
    for state in pool:
        view = views[state.rank]
        assert view.look is not None
        groups = tuple(
            msgspec.structs.replace(
                info,
                p2p_base=base,
                messages=tuple(
                    MessageCount(direction=kind, peer=peer, tag=tag, count=count)
                    for (kind, group, peer, tag), count in state.p2p.items()
                    if group == info.pg_id
                )
                if tells
                else None,
            )
            for info in view.look.groups
        )
        look = msgspec.structs.replace(view.look, groups=groups)
        views[state.rank] = replace(view, look=look)
    return diagnose(views, now_ns=NOW, run_id=RUN)


def busy_pool(n: int = 2) -> Ranks:
    """Views of ranks whose older records are not seen."""
    pool = Ranks(n)
    for state in pool:
        for _ in range(3 * _LAST):
            state.done()
    return pool


def test_two_ranks_that_both_send_first():
    pool = busy_pool()
    pool[0].blocked("send", peer=1)
    pool[1].blocked("send", peer=0)
    [finding] = diagnose_counted(pool).proven
    assert (finding.kind, str(finding.waiting)) == ("p2p-cycle", "0-1")
    assert not diagnose_counted(pool, tells=False).proven


def test_a_receive_that_is_not_seen_has_been_issued():
    pool = Ranks(2)
    pool[1].issue("recv", peer=0, state="completed")
    for state in pool:
        for _ in range(3 * _LAST):
            state.done()
    pool[0].blocked("send", peer=1)
    pool[1].finished()
    assert not diagnose_counted(pool).verdict


def test_a_message_of_before_the_group_was_formed_again_is_none_of_now():
    """The message was never waited for, so it seems open forever."""
    pool = busy_pool()
    pool[1].issue("send", peer=0)
    pool[0].p2p["recv", "world", 1, 0] = 1
    pool[0].blocked("recv", peer=1)
    pool[1].finished()
    [finding] = diagnose_counted(pool, base=1).proven
    assert (finding.kind, str(finding.culprits)) == ("p2p-unmatched", "1")


def test_a_receive_from_any_source_when_all_that_was_sent_is_taken():
    pool = busy_pool(3)
    for sender in (1, 2):
        pool[sender].p2p["send", "world", 0, 0] = 40
        pool[0].p2p["recv", "world", sender, 0] = 40
        pool[sender].finished()
    pool[0].blocked("recv", peer=-1)
    [finding] = diagnose_counted(pool).proven
    assert (finding.kind, str(finding.culprits)) == ("p2p-unmatched", "1-2")


def test_a_receive_from_any_source_when_a_message_is_left():
    pool = busy_pool(3)
    for sender in (1, 2):
        pool[sender].p2p["send", "world", 0, 0] = 40
        pool[0].p2p["recv", "world", sender, 0] = 38 + sender
        pool[sender].finished()
    pool[0].blocked("recv", peer=-1)
    assert not diagnose_counted(pool).verdict


def test_a_part_that_has_failed_does_not_count():
    pool = busy_pool()
    pool[1].issue("recv", peer=0, state="failed", failure=Failure("collective"))
    pool[1].finished()
    pool[0].blocked("send", peer=1)
    [finding] = diagnose_counted(pool).proven
    assert (finding.kind, str(finding.culprits)) == ("p2p-unmatched", "1")
