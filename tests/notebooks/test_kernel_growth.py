"""Objects of ended cells do not accumulate.

`make growth` measures the memory of thousands of cells; here the objects of a few are counted.
"""

import ast
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import pytest

from tests.support.kernel import Kernel

_CELLS = {
    "print": "%%ddp\nprint('x', {i})",
    "error": "%%ddp\n1 / 0  # {i}",
    "deadlock": "%%ddp\nif rank == 0:\n    dist.barrier()  # {i}",
    "mismatch": "%%ddp\ndist.all_reduce(torch.ones(rank + 1))  # {i}",
    "groups": "%%ddp\ng = dist.new_group()\ndist.barrier(g)\ndist.destroy_process_group(g)\ndel g",
    "async": "%%ddp --async\nprint({i})",
}
_WARM_UP, _ROUNDS, _COUNTED = 9, 3, 4
#: Objects of records and looks: kept up to a limit that a few cells do not reach.
_LIMITED = {
    "CallSignature",
    "GroupInfo",
    "Known",
    "Operation",
    "PastCell",  # the last thousand, for `%ddp catchup`
    "RankSet",  # of a `PastCell`
    "RunText",
    "Signature",
    "Site",
    "Text",
}
#: `Out` keeps the handle, which knows how its cell has ended.
_OF_A_HANDLE = {"CellHandle", "EarlierCellSink", "RankResult", "RankSet", "Run", "RunOutcome"}
#: Python's blocks of memory for each cell, most of them for its source, which IPython keeps in five
#: places. The syntax tree of an error would be eighty more.
_MOST_BLOCKS = {"kernel": 160, "rank 0": 85, "rank 1": 85}
_MOST_BLOCKS_OF_ERRORS = {"kernel": 100, "rank 0": 50, "rank 1": 50}
_COUNT = """
import collections, gc, os, sys, threading
gc.collect()
_found = [type(each) for each in gc.get_objects()]
_ours = collections.Counter(
    each.__name__ for each in _found if str(each.__module__).startswith("nbddp")
)
del _found
_counted = (
    dict(_ours), sys.getallocatedblocks(), len(os.listdir("/proc/self/fd")),
    threading.active_count(),
)
"""


@dataclass
class _Counted:
    objects: Counter[str]
    blocks: int
    fds: int
    threads: int

    def more_than(self, was: "_Counted") -> "_Counted":
        return _Counted(
            self.objects - was.objects,
            self.blocks - was.blocks,
            self.fds - was.fds,
            self.threads - was.threads,
        )

    def of_each_cell(self) -> set[str]:
        return {name for name, count in self.objects.items() if count >= _COUNTED}


def _count(kernel: Kernel) -> dict[str, _Counted]:
    """The objects that the kernel and the ranks hold."""
    kernel.ok(_COUNT)
    kernel.ok(f"%%ddp\n{_COUNT}")
    kernel.ok("_of_ranks = %ddp pull _counted")
    told = ast.literal_eval(kernel.ok("print([_counted, *_of_ranks])").text)
    found = [_Counted(Counter(objects), *rest) for objects, *rest in told]
    return dict(zip(("kernel", "rank 0", "rank 1"), found, strict=True))


@pytest.mark.full
@pytest.mark.parametrize("kind", _CELLS)
def test_kept_objects_do_not_grow_with_the_number_of_cells(kind: str, kernel: Kernel):
    def run(cells: int) -> None:
        for number in range(cells):
            kernel.run(_CELLS[kind].replace("{i}", str(number)))
            if kind == "async":
                kernel.ok("_.wait();")

    run(_WARM_UP)
    counts = [_count(kernel)]
    for _ in range(_ROUNDS):
        run(_COUNTED)
        counts.append(_count(kernel))
    expected = _LIMITED | _OF_A_HANDLE if kind == "async" else _LIMITED
    most = _MOST_BLOCKS_OF_ERRORS if kind == "error" else _MOST_BLOCKS
    for process, blocks in most.items():
        # Objects that are made once do not come in each round.
        more = [now[process].more_than(was[process]) for was, now in pairwise(counts)]
        objects = set.intersection(*(each.of_each_cell() for each in more))
        assert not objects - expected, f"{process} keeps objects of each cell"
        least = min(each.blocks for each in more) / _COUNTED
        assert least <= blocks, f"{process} keeps memory of each cell"
        assert min(each.fds for each in more) < _COUNTED, f"{process} keeps descriptors"
        assert min(each.threads for each in more) < _COUNTED, f"{process} keeps threads"
