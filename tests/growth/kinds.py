"""The kinds of cells whose growth is measured, and the limit of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field

_LIMITS = {
    # The source of a cell, in five places: `In`, `_i7`, the history, the lines for tracebacks, ...
    "kernel": 3_000,
    "ranks": 3_000,
    "agent": 300,
    "fork server": 300,
    "store": 300,
}


@dataclass(frozen=True)
class Kind:
    """One kind of cell, run again and again in one notebook, or by one script."""

    name: str
    cell: str  #: ``{i}`` is replaced by its number
    status: str = "ok"
    share: float = 1.0  #: of the number of cells: slow kinds have fewer
    then: str = ""  #: a cell after each
    stop_at: str = ""  #: press the stop button when this was shown
    is_stock: bool = False  #: needs no pool: what a notebook takes without nbddp
    in_scripts: bool = True  #: what follows the line ``%%ddp`` is a cell for `Pool.run`
    #: Bytes for each cell and process, by role, where they are others than `_LIMITS`.
    limits: Mapping[str, int] = field(default_factory=dict)

    def limit_bytes(self, role: str) -> int:
        """Bytes that one process of this role may take for each cell."""
        return self.limits.get(role, _LIMITS[role])


_SLIDER = "import ipywidgets, IPython.display\nslider = ipywidgets.IntSlider(description='{i}')\n"
_SHOW = "IPython.display.display(slider)"
_CLOSE = "\nslider.close(); slider.layout.close(); slider.style.close()"

KINDS = (
    Kind("stock print", "print('line', {i})", is_stock=True),
    Kind(
        "stock error",
        "1 / 0  # {i}",
        status="error",
        is_stock=True,
        limits={"kernel": 100_000},  # IPython keeps the syntax tree of each cell that has raised
    ),
    Kind("stock widget", _SLIDER + _SHOW, is_stock=True, limits={"kernel": 30_000}),
    Kind("print", "%%ddp\nprint('line', {i}, rank)"),
    Kind("result", "%%ddp\nrank * {i}"),
    Kind("all_reduce", "%%ddp\nx = torch.ones(10_000)\ndist.all_reduce(x)  # {i}"),
    Kind(
        "HTML",
        "%%ddp\nfrom IPython.display import HTML, display\ndisplay(HTML(f'<b>{i}</b> {rank}'))",
    ),
    Kind("await", "%%ddp\nimport asyncio\nawait asyncio.sleep(0)  # {i}"),
    Kind("long output", "%%ddp\nfor k in range(500):\n    print({i}, k, rank)", share=0.5),
    Kind("error", "%%ddp\n1 / 0  # {i}", status="error", limits={"kernel": 5_000}),
    Kind(
        "one error",
        "%%ddp\nif rank == 1:\n    1 / 0\ndist.barrier()  # {i}",
        status="error",
        share=0.5,
        limits={"kernel": 6_000, "ranks": 6_000, "store": 2_500},
    ),
    Kind(
        "deadlock",
        "%%ddp\nx = torch.ones(1000)\nif rank == 0:\n    dist.all_reduce(x)  # {i}",
        status="error",
        share=0.5,
        limits={"kernel": 6_000, "ranks": 6_000, "store": 2_500},
    ),
    Kind(
        "mismatch",
        "%%ddp\ndist.all_reduce(torch.ones(10 + rank))  # {i}",
        status="error",
        share=0.5,
        limits={"kernel": 8_000, "ranks": 6_000, "store": 2_500},
    ),
    Kind(
        "groups",
        "%%ddp\ng = dist.new_group([0, 1])\nif rank < 2:\n    y = torch.ones({i} % 5 + 1)\n"
        "    dist.all_reduce(y, group=g)\n    dist.destroy_process_group(g)\ndel g",
        limits={"ranks": 5_000, "store": 2_500},
    ),
    Kind("push", "x = bytes(8_000_000)\n%ddp push x", share=0.2, in_scripts=False),
    Kind("pull", "%ddp pull rank+{i} -r 0\nv = %ddp pull torch.ones(250_000)", in_scripts=False),
    Kind("status", "%ddp status", in_scripts=False),
    Kind("diagnose", "%ddp diagnose", in_scripts=False),
    Kind(
        "async",
        "%%ddp --async\nprint({i})",
        then="_.wait();",
        in_scripts=False,
        limits={"kernel": 12_000},  # two cells; `Out` keeps the handle, which keeps how it ended
    ),
    Kind(
        "widget",
        "%%ddp\n" + _SLIDER + _SHOW,
        share=0.2,
        in_scripts=False,
        limits={"kernel": 80_000, "ranks": 30_000},  # they live until they are closed, as in stock
    ),
    Kind("closed widget", "%%ddp\n" + _SLIDER + _SHOW + _CLOSE, share=0.5, in_scripts=False),
    Kind(
        "interrupt",
        "%%ddp\nimport time\nprint('begins')\nwhile True:\n    time.sleep(0.01)  # {i}",
        status="error",
        share=0.5,
        stop_at="begins",
        in_scripts=False,
        limits={"kernel": 5_000},
    ),
    Kind(
        "death",
        "%%ddp\nimport os\nif rank == 1:\n    os._exit(3)  # {i}",
        status="error",
        share=0.1,
        limits={"kernel": 10_000, "ranks": 10_000, "agent": 3_000, "store": 5_000},
    ),
    Kind(
        "restart -r",
        "%ddp restart -r 1",
        share=0.1,
        in_scripts=False,
        limits={"kernel": 10_000, "ranks": 10_000, "agent": 3_000, "store": 5_000},
    ),
    Kind("restart", "%ddp restart", share=0.04, in_scripts=False, limits={"kernel": 20_000}),
    Kind(
        "stop and start",
        "%ddp stop",
        then="%ddp start -n 3",
        share=0.02,
        in_scripts=False,
        limits={"kernel": 50_000},
    ),
)
