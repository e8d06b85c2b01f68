"""How long does ``%ddp diff model`` take for a model of 1 GB, beside reading its memory once?

The same model on two ranks: `Pool.diff` where it is equal, and where one weight of one rank is
another, so that it has to be found; beside ``sum()`` of every parameter, on both ranks at once, in
the same rounds. `Pool.vars` of the model is timed too.

Misleading would be: memory that was never touched, or freshly made (a warm-up reads it), more
threads than one rank has (each has one, as in a pool), or more ranks than processor cores, which
share them.
"""

import nbddp
from nbddp.controller.pool.pool import Pool
from tests.bench.common import Report, interleaved, ms, parser, timed

_MODEL = """
from torch import nn
torch.manual_seed(0)
_width = {width}
model = nn.Sequential(*[nn.Linear(_width, _width, bias=False) for _ in range(16)])
other = nn.Sequential(*[nn.Linear(_width, _width, bias=False) for _ in range(16)])
other.load_state_dict(model.state_dict())
if rank == 1:
    with torch.no_grad(): other[11].weight[-1, -1] += 1.0
def _read(): return sum(float(p.detach().sum()) for p in model.parameters())
"""


def read_once(pool: Pool) -> None:
    """Every rank at the same time."""
    pool.pull("_read()")


def diff(pool: Pool, name: str, *, is_equal: bool) -> None:
    """Compare, and check that the answer is right."""
    found = pool.diff(name)
    if found.is_equal != is_equal:
        raise RuntimeError(f"{name}: {found}")


def main() -> None:
    arguments = parser(__doc__, rounds=11, warmup=2)
    arguments.add_argument("--mb", type=float, default=1000, help="size of the model")
    chosen = arguments.parse_args()
    width = max(8, int((chosen.mb * 1e6 / 4 / 16) ** 0.5))
    with nbddp.start(2) as pool:
        pool.run(_MODEL.format(width=width))
        samples = interleaved(
            {
                "read": timed(lambda: read_once(pool)),
                "equal": timed(lambda: diff(pool, "model", is_equal=True)),
                "one weight": timed(lambda: diff(pool, "other", is_equal=False)),
                "vars": timed(lambda: pool.vars("model")),
            },
            chosen.n,
            chosen.warmup,
        )
    report = Report("diff")
    name = f"of {width * width * 64 / 1e6:.0f} MB on 2 ranks"
    read = report.add(f"sum() {name}", "ms", ms(samples["read"]))
    equal = report.add(f"diff {name}, equal", "ms", ms(samples["equal"]))
    report.add(f"diff {name}, one weight differs", "ms", ms(samples["one weight"]))
    report.add(f"vars {name}", "ms", ms(samples["vars"]))
    report.at_most("diff : sum()", equal.median / read.median, "x", 10)
    report.show()


if __name__ == "__main__":
    main()
