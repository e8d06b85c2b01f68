"""Agents that the user starts: by a file, by standard input, by a variable."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.pool import Pool
from nbddp.controller.state import PoolSnapshot
from nbddp.errors import PoolStartError
from tests.support.polling import poll_until
from tests.support.pool_processes import Told, agent_of
from tests.support.remote_pools import start, waiting_start
from tests.support.views import begin_cell

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool]
#: Each agent loads torch, which takes long on a busy machine.
START_S = 100.0
AGENT = [sys.executable, "-P", "-m", "nbddp", "agent", "--connect"]


def invitation_file(home: Path) -> Path:
    """The file that the waiting pool has written."""
    return poll_until(lambda: list((home / ".nbddp").glob("*.json")))[0]


@pytest.fixture
def agents() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Agents that the test starts; all have to end with their pool."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for agent in started:
        if agent.stdin is not None:
            agent.stdin.close()
        if agent.stderr is not None:
            agent.stderr.close()
        assert agent.wait(20) is not None


def start_in_background(options: PoolOptions) -> list[Pool | Exception]:
    """The list gets the pool, or why it did not start."""
    results: list[Pool | Exception] = []

    def run() -> None:
        try:
            results.append(start(options))
        except PoolStartError as error:
            results.append(error)

    threading.Thread(target=run).start()
    return results


def test_agents_join_by_a_file_standard_input_and_a_variable(
    home: Path, agents: list["subprocess.Popen[bytes]"]
):
    options = PoolOptions.checked(1, nnodes=4, launcher="listen", address="127.0.0.1")
    results = start_in_background(options)
    path = invitation_file(home)
    assert oct(path.stat().st_mode)[-3:] == "600"
    text = path.read_text()
    agents.append(subprocess.Popen([*AGENT, str(path)]))
    agents.append(subprocess.Popen([*AGENT, "-"], stdin=subprocess.PIPE))
    stdin = agents[-1].stdin
    assert stdin is not None
    stdin.write(text.encode())
    stdin.flush()
    with path.open() as file:
        agents.append(subprocess.Popen([*AGENT, "-"], stdin=file))
    agents.append(subprocess.Popen([*AGENT, "env"], env={**os.environ, "NBDDP_CONNECT": text}))
    pool = poll_until(lambda: results, START_S)[0]
    assert isinstance(pool, Pool)
    try:
        pool.run("import os\nt = torch.ones(1) * rank\ndist.all_reduce(t)")
        assert pool.pull("t.item()") == [6.0] * 4
        assert pool.pull("'NBDDP_CONNECT' in os.environ") == [False] * 4
        # The end of its input ends the agent on standard input; the others are told.
        stdin.close()
        poll_until(lambda: len(pool._processes.snapshot.lost_agents) == 1)
    finally:
        pool.stop()
    assert not (home / ".nbddp").exists()


def test_an_agent_that_goes_before_the_others_come_leaves_its_place(
    home: Path, agents: list["subprocess.Popen[bytes]"]
):
    options = PoolOptions.checked(1, nnodes=2, launcher="listen", address="127.0.0.1")
    results = start_in_background(options)
    path = invitation_file(home)
    words = [*AGENT, str(path)]
    first = subprocess.Popen(words, stderr=subprocess.PIPE)
    agents.append(first)
    assert first.stderr is not None
    assert b"waits for 1 other node" in first.stderr.readline()
    content = path.read_bytes()
    piped = subprocess.run([*AGENT, "-"], check=False, input=content, stderr=subprocess.PIPE)
    assert piped.returncode == 1
    assert b"not joined: standard input has ended" in piped.stderr
    assert results == []  # it would have been the second one of two
    first.send_signal(signal.SIGINT)
    assert first.wait(20) == 1
    assert b"not joined: it was ended by SIGINT" in first.stderr.read()
    agents += [subprocess.Popen(words), subprocess.Popen(words)]
    pool = poll_until(lambda: results, START_S)[0]
    assert isinstance(pool, Pool)
    try:
        pool.run("dist.barrier()")
    finally:
        pool.stop()


def test_an_agent_that_waits_for_others_hears_of_the_end_of_the_start(
    home: Path, agents: list["subprocess.Popen[bytes]"]
):
    options = PoolOptions.checked(1, nnodes=2, launcher="listen", address="127.0.0.1")
    with waiting_start(options):
        agent = subprocess.Popen([*AGENT, str(invitation_file(home))], stderr=subprocess.PIPE)
        agents.append(agent)
        assert agent.stderr is not None
        assert b"waits for 1 other node" in agent.stderr.readline()
    assert agent.wait(20) == 1
    said = agent.stderr.read().decode()
    assert "not joined: the start of the pool was interrupted, or has failed" in said


def test_an_agent_that_joins_nothing_says_why(home: Path, tmp_path: Path):
    missing = subprocess.run(
        [*AGENT, str(tmp_path / "none")], capture_output=True, text=True, check=False
    )
    assert missing.returncode == 1
    assert (
        "No such file or directory. Next: the path that %ddp listen has printed" in missing.stderr
    )
    broken = subprocess.run(
        [*AGENT, "-"], input="{}\n", capture_output=True, text=True, check=False
    )
    assert "--connect -: this is no invitation of %ddp listen" in broken.stderr


def test_the_check_reaches_the_hub_and_joins_nothing(
    home: Path, agents: list["subprocess.Popen[bytes]"]
):
    options = PoolOptions.checked(1, nnodes=1, launcher="listen", address="127.0.0.1")
    results = start_in_background(options)
    path = invitation_file(home)
    answer = subprocess.run(
        [*AGENT, str(path), "--check"], capture_output=True, text=True, check=True
    ).stdout
    assert "reached    tcp://127.0.0.1:" in answer
    assert "(lo)" in answer
    pool_line = f"pool       {path.stem} waits for 1 of its 1 node"
    assert f"{pool_line}\nnext       the same command without --check joins it" in answer
    assert results == []
    agents.append(subprocess.Popen([*AGENT, str(path)]))
    pool = poll_until(lambda: results, START_S)[0]
    assert isinstance(pool, Pool)
    kept = home / "kept.json"
    kept.write_bytes(path.read_bytes())
    kept.chmod(0o600)
    words = [*AGENT, str(kept), "--check"]
    answer = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "has its node, and takes no further agent" in answer
    altered = json.loads(kept.read_text())
    for key in ("token", "secret_key"):
        wrong, value = home / f"{key}.json", altered[key]
        wrong.write_text(json.dumps(altered | {key: value[1:] + value[:1]}))
        # It has reached nothing that it could wait for, so it does not say that.
        joins = subprocess.run([*AGENT, str(wrong)], capture_output=True, text=True, check=False)
        assert (joins.returncode, "has reached" in joins.stderr) == (1, False), joins.stderr
        assert joins.stderr.count("Next: use the file") == 1
    refused = subprocess.run(
        [*AGENT, str(home / "token.json"), "--check"], capture_output=True, text=True, check=False
    )
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "could not join: it does not show the token of this pool" in refused.stderr
    assert "Next: use the file" in refused.stderr
    pool.stop()
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "looked for the notebook on itself, since tcp://127.0.0.1:" in ended.stderr
    assert "the pool has ended, or the file is of an earlier one" in ended.stderr


def test_the_user_starts_an_agent_in_the_place_of_a_lost_one(
    home: Path, agents: list["subprocess.Popen[bytes]"]
):
    options = PoolOptions.checked(1, nnodes=2, launcher="listen", address="127.0.0.1")
    results = start_in_background(options)
    words = [*AGENT, str(invitation_file(home))]
    agents += [subprocess.Popen(words), subprocess.Popen(words)]
    pool = poll_until(lambda: results, START_S)[0]
    assert isinstance(pool, Pool)
    told, asked = Told(pool), threading.Event()
    shown: list[str] = []

    def show(snapshot: PoolSnapshot) -> None:
        shown.append(snapshot.waits_for)
        asked.set()

    pool.listeners.progress = show
    try:
        pool.run("x = rank")
        agent_of(pool, 1).send_signal(signal.SIGINT)
        told.wait_for("the agent of node 1 ended (it was ended by SIGINT)")
        restart = threading.Thread(target=lambda: pool.restart(1))
        restart.start()
        assert asked.wait(START_S)
        line = shown[0].splitlines()[-1]
        assert line.endswith(f"-m nbddp agent --connect {words[-1]}")
        agents.append(subprocess.Popen(line.split()))
        restart.join(START_S)
        pool.run("t = torch.ones(1)\ndist.all_reduce(t)")
        assert pool.pull("t.item()") == [2.0] * 2
        assert pool.pull("'x' in globals()") == [True, False]

        # An agent that comes by itself gets the place, too.
        agent_of(pool, 1).send_signal(signal.SIGINT)
        poll_until(lambda: pool.snapshot.lost_agents == {1})
        agents.append(subprocess.Popen(words))
        told.wait_for("another agent has come for node 1", "%ddp restart -r 1", timeout_s=START_S)
        pool.restart(1)
        pool.run("dist.barrier()")
        assert "was replaced" not in told.text  # by a fresh process, before the restart

        cell = begin_cell(pool, "import time\nprint('in')\ntime.sleep(100)")
        poll_until(lambda: set(cell.view.texts()) == {0, 1})
        agent_of(pool, 1).send_signal(signal.SIGINT)
        error = str(cell.join().error)
        assert "the agent of node 1 ended (it was ended by SIGINT)" in error
        assert "os._exit" not in error
    finally:
        pool.stop()
