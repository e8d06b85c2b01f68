"""Pools in the middle of a recovery: a proven hang, or a rank that has died."""

from nbddp.controller.state.actions import Action
from nbddp.wire.flight_recorder.schema import GroupInfo, GroupMark
from nbddp.wire.message_types import ErrorInfo
from tests.support.recovering import WORLD, Pool, seen, verdict, world

#: The mark of a rank for the default group after one of its operations was ended.
BROKEN = GroupMark(pg_id=WORLD, collective_seq_id=1, digest=1, is_broken=True)


def stuck_pool(**more: object) -> tuple[Pool, str]:
    """Rank 1 has finished the cell, ranks 0 and 2 wait for it."""
    pool = Pool(3, **more)  # type: ignore[arg-type]  # passed on
    run_id = pool.run()
    pool.finished(1, run_id)
    for rank in (0, 2):
        pool.looks[rank] = seen(rank, groups=(world(3, seq=1),))
    pool.report = verdict(stuck=(0, 2), involved=(0, 1, 2))
    return pool, run_id


def judged(pool: Pool, after_s: float = 0.0) -> list[Action]:
    """Actions after two rounds of looks that agree: ranks 0 and 2 are quiet."""
    return pool.answer_looks(pool.answer_looks(pool.quiet(0, 2, after_s=after_s)))


def dead_in_cell(n: int = 3) -> tuple[Pool, str]:
    """Rank 1 has died in a cell; the others were freed and have ended it."""
    pool = Pool(n)
    run_id = pool.run()
    pool.answer_free(pool.exited(1), pg_ids=(WORLD,))
    for rank in range(n):
        if rank != 1:
            pool.finished(rank, run_id, "E", was_freed=True, marks=(BROKEN,))
    return pool, run_id


def group(pg_id: str, *ranks: int, seq: int = 0) -> GroupInfo:
    """A group with these members, which has issued ``seq`` collectives."""
    return GroupInfo.of(pg_id=pg_id, name=pg_id, ranks=ranks, collective_seq_id=seq)


def start_error(text: str = "no") -> ErrorInfo:
    """The reason for which a fresh rank could not start."""
    return ErrorInfo(ename="OSError", evalue=text, traceback=[])
