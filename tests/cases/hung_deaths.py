"""Cells in which a rank dies, and the others would wait for it forever."""

from nbddp.errors import RankExitedError
from tests.cases.hung_cells import HungCell

#: The others are freed, a fresh process takes the place of the dead one.
DEATHS = [
    HungCell(
        name="os._exit before the collective",
        n=4,
        code="if rank == 1:\n    os._exit(3)\ndist.all_reduce(torch.ones(1))",
        kind=None,
        dead="1",
        error=RankExitedError,
        words=("rank 1", "exit code 3"),
    ),
    HungCell(
        name="kill -9 while the others wait",
        n=3,
        code="if rank == 2:\n    time.sleep(0.3)\n    os.kill(os.getpid(), 9)\ndist.barrier()",
        kind=None,
        dead="2",
        error=RankExitedError,
        words=("rank 2", "SIGKILL (signal 9)"),
    ),
    HungCell(
        name="kill -9 inside a collective",
        n=3,
        code="""\
if rank == 0:
    time.sleep(1000)
if rank == 1:
    threading.Timer(0.2, os.kill, (os.getpid(), 9)).start()
dist.all_reduce(torch.ones(1))
""",
        kind=None,
        dead="1",
        error=RankExitedError,
        words=("rank 1", "SIGKILL"),
    ),
    HungCell(
        name="segfault while the others wait",
        code="import ctypes\nif rank == 1:\n    ctypes.string_at(0)\ndist.barrier()",
        kind=None,
        dead="1",
        error=RankExitedError,
        words=("rank 1", "SIGSEGV (signal 11)"),
        is_variant=True,
    ),
    HungCell(
        name="rank 0 dies",
        n=3,
        code="if rank == 0:\n    os._exit(1)\ndist.recv(torch.empty(1), 0)",
        kind=None,
        dead="0",
        error=RankExitedError,
        words=("rank 0", "exit code 1"),
    ),
    HungCell(
        name="three die in three ways",
        n=5,
        code="""\
print("last line of", rank)
if rank == 1:
    os.kill(os.getpid(), 9)
if rank == 2:
    os._exit(3)
if rank == 3:
    os.kill(os.getpid(), 15)
    time.sleep(1000)
dist.barrier()
""",
        kind=None,
        dead="1-3",
        error=RankExitedError,
        words=(
            "ranks 1-3 exited",
            "SIGKILL (signal 9)",
            "exit code 3",
            "SIGTERM (signal 15)",
            "printed   last line of 1",
            "printed   last line of 2",
            "printed   last line of 3",
        ),
        is_variant=True,
    ),
    HungCell(
        name="two die",
        n=4,
        code="if rank in (1, 3):\n    os.kill(os.getpid(), 9)\ndist.all_reduce(torch.ones(1))",
        kind=None,
        dead="1,3",
        error=RankExitedError,
        words=("SIGKILL",),
    ),
    HungCell(
        name="dies in a backward hook",
        code="""\
x = torch.ones(1, 4, requires_grad=True)
if rank == 0:
    x.register_hook(lambda gradient: os._exit(7))
model((x * 1)).sum().backward()
dist.barrier()
""",
        kind=None,
        dead="0",
        error=RankExitedError,
        words=("rank 0", "exit code 7"),
        is_variant=True,
    ),
    HungCell(
        name="dies while the others compute",
        n=3,
        code="if rank == 1:\n    os._exit(2)\nwhile True:\n    pass",
        kind=None,
        dead="1",
        error=RankExitedError,
        words=("rank 1", "exit code 2"),
        is_variant=True,
    ),
]
