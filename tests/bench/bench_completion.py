"""How long does Tab take in a ``%%ddp`` cell?

From the front end's ``complete_request`` to its reply, in a real kernel: for names that live in a
rank that is idle, and in one that computes in Python all the time; beside them the notebook's own
completer with the same names. The same for Shift-Tab (``inspect_request``).

Misleading would be: the first question to a rank (its completer has not seen torch yet; it is shown
on its own), a pool on a machine that has fewer cores than busy ranks (they wait for each other), or
fewer names than torch has.
"""

import time
from collections.abc import Callable

from tests.bench.common import Report, interleaved, ms, parser
from tests.support.kernel import LIMIT_S, Kernel, running_kernel

_CODE = "x = torch.zeros(2)\ntorch.nn.functional.re"
_NAME = "torch.nn.functional.relu"


def asked(kernel: Kernel, question: str, code: str) -> Callable[[], float]:
    """One question, from its request to its reply."""
    client = kernel.client
    ask = client.complete if question == "complete" else client.inspect

    def run() -> float:
        began = time.perf_counter()
        msg_id = ask(code, len(code))
        reply = client.get_shell_msg(timeout=LIMIT_S)
        while reply["parent_header"]["msg_id"] != msg_id:
            reply = client.get_shell_msg(timeout=LIMIT_S)
        took = time.perf_counter() - began
        content = reply["content"]
        assert content.get("found") or "relu" in str(content.get("matches")), content
        return took

    return run


def main() -> None:
    arguments = parser(__doc__, rounds=100, warmup=5)
    arguments.add_argument("--ranks", type=int, default=2)
    chosen = arguments.parse_args()
    report = Report("completion")

    with running_kernel() as kernel:
        kernel.ok("%load_ext nbddp\nimport torch")
        kernel.ok(f"%ddp start -n {chosen.ranks}")
        first = asked(kernel, "complete", f"%%ddp\n{_CODE}")()
        report.add("Tab, the first one", "ms", ms([first]))
        questions = {
            "Tab, idle rank": asked(kernel, "complete", f"%%ddp\n{_CODE}"),
            "Tab, the notebook's own": asked(kernel, "complete", _CODE),
            "Shift-Tab, idle rank": asked(kernel, "inspect", f"%%ddp\n{_NAME}"),
        }
        for name, samples in interleaved(questions, chosen.n, chosen.warmup).items():
            report.add(name, "ms", ms(samples))
        kernel.ok("%%ddp --async -r 0\nwhile True: sum(range(100))")
        kernel.ok("handle = _")
        busy = {
            "Tab, busy rank": asked(kernel, "complete", f"%%ddp\n{_CODE}"),
            "Shift-Tab, busy rank": asked(kernel, "inspect", f"%%ddp\n{_NAME}"),
        }
        for name, samples in interleaved(busy, chosen.n, chosen.warmup).items():
            report.add(name, "ms", ms(samples))
        kernel.run("handle.interrupt()\nawait handle")
        kernel.ok("%ddp stop")
    by_name = {series.name: series for series in report.series}
    report.at_most("Tab, the first one", first * 1000, "ms", 200)
    for name in ("Tab, idle rank", "Tab, busy rank", "Shift-Tab, busy rank"):
        report.at_most(f"{name}, p99", by_name[name].p99, "ms", 200)
    report.show()


if __name__ == "__main__":
    main()
