"""An agent observes real ranks from outside, for a hub that the test plays."""

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from nbddp.system import stack_signals
from nbddp.wire.message_types import KillRequest
from nbddp.wire.messages import (
    DumpStack,
    Execute,
    Interrupt,
    KillRanks,
    Output,
    RankExited,
    RankReady,
    RankSpawned,
    RanksStalled,
    RunFinished,
    StackDumped,
    StartFailed,
)
from tests.support.nodes import Node
from tests.support.polling import poll_until

_numbers = itertools.count(1)


@pytest.fixture
def make_node() -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def make(n: int = 2, **options: Any) -> Node:
        made.append(Node(n, **options))
        return made[-1].start()

    yield make
    for node in made:
        node.close()


class SharedNode:
    """In the place of `conftest.SharedPool`: the check for leaks must know it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.pool_id = node.spec.pool_id


@pytest.fixture(scope="module")
def shared_pool(own_temporary_folder: Path) -> Iterator[SharedNode]:
    node = Node(2)
    try:
        yield SharedNode(node.start())
    finally:
        node.close()


@pytest.fixture
def node(shared_pool: SharedNode) -> Iterator[Node]:
    """One node of two ranks for many tests, which may do with its ranks what they like."""
    yield shared_pool.node
    shared_pool.node.renew()


def peek(node: Node, *ranks: int, native: bool = False) -> dict[int, StackDumped]:
    number = next(_numbers)
    node.tell(DumpStack(number=number, ranks=ranks, native=native))
    return answers(node, number, *ranks)


def answers(node: Node, number: int, *ranks: int) -> dict[int, StackDumped]:
    found = [node.next(StackDumped, lambda e: e.number == number) for _ in ranks]
    by_rank = {seen.rank: seen for seen in found}
    assert sorted(by_rank) == sorted(ranks)
    return by_rank


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    poll_until(lambda: state(pid) == "T")


def test_ranks_whose_operations_do_not_move_are_told(node: Node):
    node.begin("dist.all_reduce(torch.ones(3))", 0)
    node.run("pass", 1)
    for _ in range(3):
        assert node.next(RanksStalled) == RanksStalled(node=0, ranks=(0,))
    seen = peek(node, 0, 1)
    [operation] = [found for found in seen[0].operations if found.state == "scheduled"]
    assert (operation.signature.op, operation.site.line) == ("all_reduce", 1)
    assert seen[0].version == peek(node, 0)[0].version
    node.run("dist.all_reduce(torch.ones(3))", 1)
    node.finished(0)
    node.events.clear()
    node.run("import time; time.sleep(1)", 0, 1)
    assert not any(isinstance(event, RanksStalled) for event in node.read())


@pytest.mark.full
def test_plain_pools_are_not_watched(make_node: Callable[..., Node]):
    node = make_node(2, plain=True)
    node.begin("dist.all_reduce(torch.ones(3))", 0)
    node.run("import time; time.sleep(1)", 1)
    assert not any(isinstance(event, RanksStalled) for event in node.read())
    seen = peek(node, 0)[0]
    assert (seen.version, seen.operations) == (0, ())
    assert "in all_reduce" in seen.stack
    node.run("dist.all_reduce(torch.ones(3))", 1)
    node.finished(0)


#: Blocked in C++, asleep, in C code that holds the GIL, with many threads and deep.
_BLOCKED = {
    0: ("dist.recv(torch.ones(3), src=1)", "in recv"),
    1: ("import time\ntime.sleep(1000)", '", line 2 in <module>'),
    2: ("import time; time.sleep(0.5)\nsum(range(10**12))", '", line 2 in <module>'),
    3: (
        "import threading, time\n"
        "for _ in range(40): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"
        "\ndef dive(n): dive(n - 1) if n else time.sleep(1000)\ndive(200)",
        "in dive",
    ),
}


def test_stacks_of_ranks_that_cannot_answer(make_node: Callable[..., Node]):
    node = make_node(4)
    # A busy machine may give a rank no time for its answer.
    poll_until(
        lambda: all("rank/server.py" in seen.stack for seen in peek(node, 0, 1, 2, 3).values())
    )
    for rank, (code, _) in _BLOCKED.items():
        node.begin(code, rank)
    for _ in range(3):
        seen = poll_until(lambda: _all_inside(peek(node, 0, 1, 2, 3)))
        assert seen[2].process_state == "R"
        assert seen[2].cpu_s > 0
        assert seen[0].process_state == seen[1].process_state == "S"
    stop(node.pids[1])
    assert [peek(node, 1)[1].stack, peek(node, 1)[1].process_state] == ["", "T"]
    os.kill(node.pids[1], signal.SIGCONT)
    poll_until(lambda: _BLOCKED[1][1] in peek(node, 1)[1].stack)
    # A crash is told from a dump, though both come at once.
    node.tell(DumpStack(number=-1, ranks=(0, 1)))
    os.kill(node.pids[1], signal.SIGSEGV)
    exited = node.next(RankExited)
    assert (exited.rank, exited.exit_code) == (1, -signal.SIGSEGV)
    assert exited.fault.startswith("Fatal Python error: Segmentation fault")
    node.next(StackDumped, lambda e: (e.number, e.rank) == (-1, 0))


def test_a_survey_tells_memory_and_sends_no_signal(node: Node):
    handler = (
        "import signal, time\n"
        "signal.signal(signal.SIGUSR2, lambda *_: print('signal', flush=True))\n"
        "kept = bytearray(b'x') * 50_000_000\n"
        "print('there', flush=True)\n"
        "time.sleep(60)\n"
    )
    node.begin(handler, 0)
    node.next(Output, lambda e: "there" in e.text)
    for _ in range(3):
        number = next(_numbers)
        node.tell(DumpStack(number=number, ranks=(0, 1), stack=False, memory=True))
        seen = answers(node, number, 0, 1)
    assert seen[0].memory_is_pss
    assert seen[0].memory_bytes > seen[1].memory_bytes + 45_000_000 > 50_000_000
    # Each has its part of torch's pages, and not all of them.
    assert seen[1].memory_bytes < 0.7 * psutil.Process(node.pids[1]).memory_info().rss
    assert (seen[0].stack, seen[0].operations, seen[0].process_state) == ("", (), "S")
    os.kill(node.pids[0], signal.SIGUSR2)
    assert node.next(Output, lambda e: "signal" in e.text).text.count("signal") == 1


def _all_inside(seen: dict[int, StackDumped]) -> dict[int, StackDumped]:
    for rank, (_, words) in _BLOCKED.items():
        assert words in seen[rank].stack
    return seen


#: Calls that a signal could disturb; each ends by itself while its rank is dumped repeatedly.
_UNDISTURBED = [
    "if rank == 0: time.sleep(0.5)\ndist.all_reduce(ones)",
    "if rank == 0:\n    time.sleep(0.5)\n    dist.send(ones, 1)\nelse: dist.recv(ones, 0)",
    "store = dist.distributed_c10d._get_default_store()\n"
    "if rank == 0:\n    time.sleep(0.5)\n    store.set('key', '1')\nelse: store.wait(['key'])",
    "if rank == 0: time.sleep(0.5)\ndist.new_group([0, 1])",
    "assert subprocess.run(['sleep', '0.5'], capture_output=True).returncode == 0",
    "a, b = socket.socketpair()\na.settimeout(0.5)\n"
    "try: a.recv(1)\nexcept TimeoutError: pass\nelse: raise SystemError",
    "list(torch.utils.data.DataLoader(range(8), num_workers=2))",
    "import asyncio; await asyncio.sleep(0.5)",
    # Frames of other threads, which a signal handler must not touch.
    "import threading\nends = time.monotonic() + 1\n"
    "def leaf(i): return (lambda x: [x for _ in range(3)])(i)[0]\n"
    "def turn():\n    while time.monotonic() < ends:\n"
    "        sum(leaf(i) for i in range(10)); time.sleep(0.0001)\n"
    "threads = [threading.Thread(target=turn) for _ in range(3)]\n"
    "for each in threads: each.start()\nturn()\nfor each in threads: each.join()",
    # Frames that are half built for a moment, which a C signal handler must not meet.
    "class Leaf:\n"
    "    def __init__(self, x): self.x = x\n"
    "    def __lt__(self, other): return self.x < other.x\n"
    "    value = property(lambda self: self.x)\n"
    "ends = time.monotonic() + 2\n"
    "while time.monotonic() < ends:\n"
    "    assert [leaf.value for leaf in sorted(map(Leaf, range(20)))] == list(range(20))",
]


@pytest.mark.full
def test_stack_dumps_disturb_nothing(node: Node):
    node.run("import socket, subprocess, time; ones = torch.ones(3)", 0, 1)
    for code in _UNDISTURBED:
        node.begin(code, 0, 1)
        stacks = ""
        while not any(isinstance(event, RunFinished) for event in node.read()):
            stacks += "".join(seen.stack for seen in peek(node, 0, 1).values())
        assert stacks
        assert [end.error for end in node.finished(0, 1)] == [None, None], code


def test_a_cell_that_holds_the_gil_from_its_beginning_is_interrupted(node: Node):
    """The rank may not even be able to report that it has begun."""
    node.run("import sys; sys.setswitchinterval(1000)", 0)
    request = Execute(run_id="long", code="pow(3, 10**9)", execution_count=1, first_line=1)
    node.tell_ranks([0], request)
    poll_until(lambda: "pow" in peek(node, 0)[0].stack or peek(node, 0)[0].process_state == "R")
    node.tell(Interrupt(run_id="long", ranks=(0,)))
    [end] = node.finished(0)
    assert end.error is not None
    assert end.error.ename == "KeyboardInterrupt"
    node.run("sys.setswitchinterval(0.005)", 0)


@pytest.mark.parametrize("handler", ["SIG_DFL", pytest.param("SIG_IGN", marks=pytest.mark.full)])
def test_a_rank_without_handlers_is_not_harmed(node: Node, handler: str):
    code = "import signal; signal.signal({}, signal.{})"
    node.run(code.format(stack_signals.C, handler), 0)
    poll_until(lambda: "rank/server.py" in peek(node, 0)[0].stack)  # Python writes it
    node.begin("import time; time.sleep(0.5)\nsum(range(5 * 10**7))", 0)
    poll_until(lambda: not peek(node, 0)[0].stack)  # C code, in which Python runs no handler
    node.finished(0)
    node.run(code.format(stack_signals.PYTHON, handler), 0)
    assert peek(node, 0)[0].stack == ""
    node.run("pass", 0)


def test_a_rank_that_starts_is_not_harmed(node: Node):
    """The rank has no handler yet, and without one the signal would end it."""
    node.tell(KillRanks(ranks=(0,)))
    node.next(RankExited)
    node.tell(node.request((0,), joins=True))
    while not any(isinstance(event, RankReady) for event in node.read()):
        node.tell(DumpStack(number=next(_numbers), ranks=(0,)))
    node.run("pass", 0)
    poll_until(lambda: "rank/server.py" in peek(node, 0)[0].stack)


_SPY = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
case "$*" in *--native*) ;; *) echo Process; exit 1;; esac
printf 'Process\\n\\nThread 1 (idle)\\n    wait (libtorch.so)\\n'
"""


@pytest.mark.full
def test_native_frames_come_from_py_spy(make_node: Callable[..., Node], tmp_path: Path):
    program = tmp_path / "py-spy"
    program.write_text(_SPY)
    program.chmod(0o755)
    node = make_node(2, path=tmp_path)
    assert peek(node, 0)[0].native == ""
    seen = peek(node, 0, 1, native=True)
    assert "wait (libtorch.so)" in seen[0].native
    assert "rank/server.py" in seen[1].stack
    stop(node.pids[0])
    assert peek(node, 0, native=True)[0].native == ""  # it has failed
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[2] == f"dump --nonblocking --pid {node.pids[0]}"
    os.kill(node.pids[0], signal.SIGCONT)
    # A program that hangs delays its own answer only.
    program.write_text("#!/bin/sh\necho Process\nexec sleep 1000\n")
    node.tell(DumpStack(number=-1, ranks=(0, 1), native=True))
    peek(node, 0, 1)
    assert not any(isinstance(event, StackDumped) for event in node.events)
    late = answers(node, -1, 0, 1)
    assert [(seen.native, seen.stack != "") for seen in late.values()] == [("", True)] * 2


def test_a_killed_rank_is_replaced_and_the_others_stay(make_node: Callable[..., Node]):
    node = make_node(3)
    node.run("kept = 5; dist.barrier()", 0, 1, 2)
    assert peek(node, 1)[1].operations != ()
    node.begin("print('last words'); import time; time.sleep(1000)", 1)
    node.next(Output, lambda e: "last words" in e.text)
    node.tell(KillRanks(ranks=(1,)))
    exited = node.next(RankExited)
    assert (exited.rank, exited.pid, exited.cause) == (1, node.pids[1], KillRequest())
    assert exited.last_output == "last words\n"
    node.tell(KillRanks(ranks=(1,)))  # no rank is there
    node.start_ranks([1], node.request((1,), joins=True))
    spawned = node.next(RankSpawned, lambda e: e.pid == node.pids[1])
    assert node.pids[1] != exited.pid
    log = Path(spawned.log_path).read_text()
    assert log.endswith("last words\n\n[nbddp: a fresh process takes the place of rank 1]\n")
    node.run("assert not dist.is_initialized(); kept = 6", 1)
    node.run("assert kept == 5", 0, 2)
    assert peek(node, 1)[1].operations == ()  # what its predecessor wrote is gone


@pytest.mark.parametrize(
    ("rank", "words"), [(0, "rank 0 already runs, pid"), (2, "rank 2 does not belong to node 0")]
)
def test_ranks_that_cannot_be_started(node: Node, rank: int, words: str):
    node.tell(node.request((rank,), joins=True))
    failed = node.next(StartFailed)
    assert (failed.node, failed.rank) == (0, rank)
    assert words in failed.error.evalue
    node.run("dist.barrier()", 0, 1)


def test_the_reason_comes_before_the_exit(make_node: Callable[..., Node]):
    """A rank that could not start ends only when its agent has the reason."""
    node = make_node(2)
    node.spec = msgspec.structs.replace(node.spec, backend="cpu:gloo,cuda:nccl")
    os.kill(node.pids[1], signal.SIGKILL)
    node.next(RankExited)
    for _ in range(10):
        node.tell(node.request((1,), joins=True))
        while not (ends := [e for e in node.events if isinstance(e, StartFailed | RankExited)]):
            node.read(0.2)
        failed = ends[0]
        assert isinstance(failed, StartFailed)
        assert failed.sync == 1
        assert "needs GPUs" in failed.error.evalue
        node.events.remove(failed)
        node.next(RankExited)


def test_output_comes_before_the_exit(make_node: Callable[..., Node]):
    """The notice is fast; it still comes with or after the printed text."""
    node = make_node(2)
    for rank in (0, 1):
        node.send(  # it may be dead before it has said that it has begun
            "import os, sys\nfor n in range(20000): print('line', n)\n"
            "sys.stdout.write('the end'); sys.stdout.flush(); os.kill(os.getpid(), 9)",
            rank,
        )
        exited = node.next(RankExited)
        assert exited.last_output.endswith("the end")
        texts = [e.text for e in node.events if isinstance(e, Output) and e.rank == rank]
        assert "".join(texts).endswith("line 19999\nthe end")
