"""Long names of groups and keys: messages about them are short, and proofs are the same."""

from nbddp.controller.hub.rank_requests import RankRequests
from nbddp.controller.pool.pool import Pool
from nbddp.errors import DeadlockError
from nbddp.wire import codec
from nbddp.wire.messages import RankDescribed
from tests.support.views import run_cell


def deadlock_of(pool: Pool, code: str) -> str:
    view = run_cell(pool, code, timeout=30, check=False)
    assert isinstance(view.error, DeadlockError), view.error
    text = str(view.error)
    assert len(text) < 10_000
    return text


def test_a_deadlock_in_a_group_with_a_long_description(pool: Pool):
    run_cell(pool, "group = dist.new_group(group_desc='g' * 3_000_000)")
    assert pool.pull("group.group_desc.count('g')") == [3_000_000, 3_000_000]
    text = deadlock_of(pool, "if rank == 0:\n    dist.all_reduce(torch.ones(1), group=group)")
    assert "rank 1 never called all_reduce" in text.lower()
    assert "g" * 190 in text
    run_cell(pool, "dist.destroy_process_group(group)\ndel group")


def test_a_wait_for_keys_with_long_names(pool: Pool):
    code = """
keys = ["k" * 5_000 + str(n) for n in range(10)]
dist.distributed_c10d._get_default_store().wait(keys)
"""
    assert "k" * 190 in deadlock_of(pool, code)


def test_a_rank_with_long_names_tells_little(pool: Pool):
    code = """
import threading
ready, stop = threading.Event(), threading.Event()
lines = {}
exec(f"def {'f' * 3_000_000}():\\n    ready.set()\\n    stop.wait()", globals(), lines)
[target] = lines.values()
thread = threading.Thread(target=target, name="t" * 3_000_000, daemon=True)
thread.start()
ready.wait()
"""
    run_cell(pool, code)
    try:
        looks = RankRequests(lambda: pool._processes.hub).survey().looks
        sizes = [
            len(codec.encode(RankDescribed(number=1, rank=rank, look=look)))
            for rank, look in looks.items()
        ]
        assert len(sizes) == 2
        assert max(sizes) < 100_000
    finally:
        run_cell(pool, "stop.set()\nthread.join()\ndel thread, target, lines")
