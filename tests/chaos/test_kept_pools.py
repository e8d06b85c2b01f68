"""A pool with ``--keep`` outlives its notebook, and another process takes it back."""

import json
import os
import re
import signal
from collections.abc import Iterator

import pytest

from tests.support.kept_site import KeptSite, Script, kept_site
from tests.support.polling import poll_until

_START = """
import nbddp, sys, time
pool = nbddp.start({ranks}, nnodes={nodes}, keep="{keep}")
pool.run("x = torch.ones(2) * rank")
print("pool", pool.pool_id, flush=True)
pool.run('''{cell}''')
print("cell has ended", flush=True)
time.sleep(1000)
"""
_ATTACH = """
import nbddp, time
from nbddp.errors import CellError, NbddpError
def tried(action):
    try:
        return action()
    except NbddpError as error:
        return f"{type(error).__name__}: {error}"
pool = nbddp.attach()
print("attached", pool.pool_id, flush=True)
"""


@pytest.fixture
def site() -> Iterator[KeptSite]:
    with kept_site() as made:
        yield made


def begin(
    site: KeptSite, cell: str, *, keep: str = "10min", ranks: int = 2, nodes: int = 1
) -> Script:
    script = site.start(_START.format(ranks=ranks, nodes=nodes, keep=keep, cell=cell))
    script.wait_line("pool ")
    return script


def test_a_cell_goes_on_without_its_notebook_and_the_pool_works_as_before(site: KeptSite):
    first = begin(
        site,
        """
import re
import time
for step in range(1000):
    print("step", step)
    if dist.get_rank() == 0 and "stop" in globals(): break
    time.sleep(0.1)
    if step == 30: break
x += 1""",
    )
    first.wait_line("[0-1] step 3")
    first.kill()
    second = site.start(
        _ATTACH
        + """
print("outcome", pool.rejoin(), flush=True)
print("x", pool.pull("x.tolist()"), flush=True)
pool.push(y=3)
pool.run("dist.all_reduce(x); z = x * y")
print("z", pool.pull("z.tolist()"))
print("deadlock", tried(lambda: pool.run("if rank == 0: dist.barrier()")).splitlines()[0])
print("restarted", pool.restart(1).split(";")[0])
pool.run("dist.barrier()")
pool.restart()
print("names", pool.pull("'x' in globals()"))
pool.stop()
"""
    )
    second.wait_line("attached")
    assert second.wait_line("outcome") == "<RunOutcome: ranks 0-1 ok; {} s>".format(
        second.lines[-1].rpartition("; ")[2].removesuffix(" s>")
    )
    assert [line for line in second.lines if "step" in line] == [
        f"[0-1] step {step}" for step in range(31)
    ]
    rest = second.finish()
    assert "x [[1.0, 1.0], [2.0, 2.0]]" in rest
    assert "z [[9.0, 9.0], [9.0, 9.0]]" in rest
    assert "deadlock DeadlockError:" in rest
    assert "names [False, False]" in rest
    site.wait_until_nothing_runs()
    assert not site.pool_folders()


@pytest.mark.full
def test_a_cell_that_ended_meanwhile_shows_its_output_and_error(site: KeptSite):
    first = begin(
        site,
        """
import time
print("early")
display({"text/plain": "shown"}, raw=True)
time.sleep(1)
print("late")
if rank == 1: raise ValueError("lost")""",
        nodes=2,
        ranks=1,
    )
    first.wait_line("[0-1] early")
    first.kill()
    # The ranks leave the cell while nobody listens.
    log = next(site.folder.glob("nbddp-*/rank1.log"))
    poll_until(lambda: "late" in log.read_text())
    second = site.start(
        _ATTACH
        + """
print("outcome", tried(pool.rejoin))
print("x", pool.pull("x.tolist()"), flush=True)
pool.run("dist.all_reduce(x)")
pool.stop()
"""
    )
    text = second.finish()
    assert "[0-1] early" in text
    assert "[0-1] late" in text
    assert "shown" in text
    assert "CellError: rank 1 raised ValueError" in text
    assert "x [[0.0, 0.0], [1.0, 1.0]]" in text
    site.wait_until_nothing_runs()


@pytest.mark.full
def test_a_rank_that_died_meanwhile_is_told_and_replaced(site: KeptSite):
    first = begin(
        site,
        """
import os, time
print("in")
if rank == 1: time.sleep(0.5); os._exit(3)
dist.barrier()""",
    )
    first.wait_line("[0-1] in")
    first.kill()
    second = site.start(
        _ATTACH
        + """
print("outcome", tried(pool.rejoin))
pool.run("dist.barrier()")
print("names", pool.pull("'x' in globals()"))
pool.stop()
"""
    )
    text = second.finish()
    assert "RankExitedError: rank 1 exited with code 3" in text
    assert "define its variables in a cell" in " ".join(text.split())
    assert "names [True, False]" in text
    site.wait_until_nothing_runs()


@pytest.mark.full
def test_a_cell_of_a_node_that_was_lost_meanwhile_has_failed(site: KeptSite):
    first = begin(
        site,
        """
import time
print("in")
time.sleep(1)
print("out")""",
        nodes=2,
        ranks=1,
    )
    first.wait_line("[0-1] in")
    first.kill()
    (folder,) = site.pool_folders()
    record = json.loads((folder / "pool.json").read_text())
    os.kill(record["agents"][1]["pid"], signal.SIGKILL)
    poll_until(lambda: "out" in (folder / "rank0.log").read_text())
    second = site.start(
        _ATTACH
        + """
print("states", pool, flush=True)
print("outcome", tried(pool.rejoin))
print("of", pool.left_cell.run.outcome)
print("x", pool.pull("x.tolist()", ranks=0), flush=True)
pool.stop()
"""
    )
    text = second.finish()
    assert "1 exited" in next(line for line in text.splitlines() if line.startswith("states"))
    assert "RankExitedError: rank 1 exited in or after " in text
    assert "<RunOutcome: rank 0 ok, rank 1 exited;" in text
    assert "x [0.0, 0.0]" in text
    site.wait_until_nothing_runs()


@pytest.mark.full
def test_the_second_notebook_may_be_killed_too(site: KeptSite):
    first = begin(site, "print('in'); import time; time.sleep(2)")
    first.wait_line("[0-1] in")
    first.kill()
    second = site.start(_ATTACH + "time.sleep(1000)")
    second.wait_line("attached")
    refused = site.start("import nbddp\ntry: nbddp.attach()\nexcept Exception as e: print(e)")
    assert re.search(r" (is|are) attached. Next: %ddp pools says where", refused.finish())
    second.kill()
    third = site.start(_ATTACH + "print(pool.rejoin()); print(pool.pull('rank')); pool.stop()")
    assert "ranks 0-1 ok" in (text := third.finish())
    assert "[0, 1]" in text
    site.wait_until_nothing_runs()


@pytest.mark.full
def test_everything_ends_when_the_time_is_over(site: KeptSite):
    first = begin(site, "print('in'); import time; time.sleep(1000)", keep="2s")
    first.wait_line("[0-1] in")
    (folder,) = site.pool_folders()
    record = json.loads((folder / "pool.json").read_text())
    assert (folder / "pool.json").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    for process in site.processes():
        assert not any(record["token"] in word for word in process.cmdline())
    assert record["token"] not in (folder / "agent-0.log").read_text()
    first.kill()
    site.wait_until_nothing_runs()
    assert sorted(path.name for path in folder.iterdir()) == ["ended.json", "in-use.lock"]
    assert record["token"] not in (folder / "ended.json").read_text()
    late = site.start("import nbddp\ntry: nbddp.attach()\nexcept Exception as e: print(e)")
    assert "no pool of yours is detached" in late.finish()
    named = f"nbddp.attach({record['pool_id']!r})"
    late = site.start(f"import nbddp\ntry: {named}\nexcept Exception as e: print(e)")
    assert "has ended: nobody attached in the time" in late.finish()


@pytest.mark.full
def test_the_record_of_processes_that_were_all_killed_is_removed(site: KeptSite):
    first = begin(site, "print('in'); import time; time.sleep(1000)")
    first.wait_line("[0-1] in")
    (folder,) = site.pool_folders()
    first.kill()
    for process in site.processes():
        process.kill()
    site.wait_until_nothing_runs()
    late = site.start("import nbddp\ntry: nbddp.attach()\nexcept Exception as e: print(e)")
    assert "no pool of yours is detached" in late.finish()
    assert not (folder / "pool.json").exists()


def test_the_end_of_a_script_lets_the_pool_go(site: KeptSite):
    first = site.start(
        """
import nbddp
pool = nbddp.start(2, keep="10min")
pool.run("x = rank + 10")
print("pool", pool.pool_id)
"""
    )
    first.finish()
    second = site.start(_ATTACH + "print(pool.rejoin(), pool.pull('x')); pool.stop()")
    assert "None [10, 11]" in second.finish()
    site.wait_until_nothing_runs()
