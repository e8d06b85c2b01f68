"""The ends of the logs of ranks."""

from nbddp.controller.pool import Pool, log_tails
from tests.support.polling import poll_until


def test_logs_are_read_here_and_by_the_agent(pool: Pool):
    pool.run("print('last words of', rank)")
    poll_until(lambda: all("last words" in t.text for t in log_tails(pool, pool.all_ranks, 9_999)))
    for tail in log_tails(pool, pool.all_ranks, 9_999):
        assert tail.place == pool.ranks()[tail.rank].log_path
        assert tail.text.endswith(f"last words of {tail.rank}\n")
        by_agent = pool.talk.log(tail.rank, 0, 9_999, 20.0)
        assert by_agent is not None
        assert (by_agent.text, by_agent.size, by_agent.problem) == (tail.text, tail.size, "")
