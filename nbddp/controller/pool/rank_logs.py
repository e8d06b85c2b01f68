"""The logs of ranks: where they are, and their ends, which come from other machines on demand.

Runs in: the notebook's process, any thread.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nbddp.controller.pool.pool import Pool
from nbddp.controller.state import silent_since_text
from nbddp.system.log_tail import read_tail
from nbddp.wire.rank_set import Rank, RankSet

#: An agent that is heard answers in a part of this time.
_ANSWER_S = 10.0


@dataclass(frozen=True)
class LogTail:
    """The end of the log of a rank."""

    rank: Rank
    place: str  #: path of the file, with the host if it is another machine: ``n2:/tmp/x/rank3.log``
    text: str = ""
    size: int = 0  #: bytes of the whole file
    problem: str = ""  #: why it cannot be read; empty: it was


def log_tails(pool: Pool, ranks: RankSet, max_bytes: int) -> Iterator[LogTail]:
    """Read the ends of logs, each when it is wanted.

    Args:
        pool: the living pool.
        ranks: whose logs.
        max_bytes: of each not more than this.
    """
    for rank in ranks:
        yield _log_tail(pool, rank, max_bytes)


def _log_tail(pool: Pool, rank: Rank, max_bytes: int) -> LogTail:
    snapshot, place = pool.snapshot, pool.log_path_by_rank[rank]
    info = snapshot.ranks[rank]
    if not pool.options.has_machines:
        try:
            text, size = read_tail(Path(info.log_path), max_bytes)
        except OSError as error:
            return LogTail(rank, place, problem=error.strerror or str(error))
        return LogTail(rank, place, text, size)
    if info.node in snapshot.lost_agents:
        return LogTail(rank, place, problem=f"node {info.node} is lost")
    silent = [each for each in pool.silences(pool.all_ranks) if each.node == info.node]
    if silent:
        return LogTail(rank, place, problem=silent_since_text(silent))
    answer = pool.talk.log(rank, info.node, max_bytes, _ANSWER_S)
    if answer is None:
        problem = f"its node has not answered in {_ANSWER_S:g} s"
        return LogTail(rank, place, problem=problem)
    return LogTail(rank, place, answer.text, answer.size, answer.problem)
