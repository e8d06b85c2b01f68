"""How long until the error of a recursion of thousands of frames is there?

Timed is `Pool.submit` to the end of `Pool.wait`, for cells that recurse until Python stops them, on
one rank of a warm pool: at Python's own limit of 1,000 frames, and at 10,000. Beside them, a cell
that raises at once.

Misleading would be: the first error of a process, for which IPython loads its lexers (so warm it
up); a limit that the cell's frames never reach (so the name of the error is checked).
"""

import nbddp
from nbddp.controller.pool import CellOptions, Pool
from tests.bench.bench_output_flood import CountingView
from tests.bench.common import Report, interleaved, ms, parser, timed

_RECURSION = (
    "def deeper(n): return deeper(n + 1)\nimport sys\nsys.setrecursionlimit({0})\ndeeper(0)\n"
)


def fail(pool: Pool, code: str, name: str) -> None:
    """Run a cell whose error has this name on all ranks."""
    outcome = pool.wait(pool.submit(code, CellOptions(ranks=pool.all_ranks)), CountingView())
    names = {result.error.ename for result in outcome.results.values() if result.error is not None}
    if names != {name}:
        raise RuntimeError(f"the cell has raised {names}, not {name}")


def main() -> None:
    chosen = parser(__doc__, rounds=20, warmup=2).parse_args()
    report = Report("recursion")
    with nbddp.start(1) as pool:
        samples = interleaved(
            {
                "error": timed(lambda: fail(pool, "1 / 0\n", "ZeroDivisionError")),
                **{
                    str(depth): timed(
                        lambda depth=depth: fail(  # type: ignore[misc]
                            pool, _RECURSION.format(depth), "RecursionError"
                        )
                    )
                    for depth in (1000, 10_000)
                },
            },
            chosen.n,
            chosen.warmup,
        )
    report.add("an error at once", "ms", ms(samples["error"]))
    report.add("a recursion of 1,000 frames", "ms", ms(samples["1000"]))
    deep = report.add("a recursion of 10,000 frames", "ms", ms(samples["10000"]))
    report.at_most("error of 10,000 frames", deep.p99, "ms", 500)
    report.show()


if __name__ == "__main__":
    main()
