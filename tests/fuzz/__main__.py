"""Frames that no honest process sends, at every socket: ``python -m tests.fuzz [-n 100000]``.

A third goes to a hub, a third to an agent, and a third to ranks, from senders that are trusted and
from strangers: nonsense of the right type, torn and replayed messages, huge lengths, deep nesting.
An end is replaced now and then. Exit status 1, with the seed that does it again, if one ends, does
not do its work any more, or takes much memory.
"""

import argparse
import os
import random
import sys
import time
import traceback
from contextlib import closing
from typing import Any

from tests.conftest import make_pool
from tests.fuzz.ends import AgentEnd, HubEnd, RankEnd, memory_is_bounded

_PER_END = 1000


def main() -> int:
    """Send, tell, and give the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=100_000, help="frames in all (default: 100000)")
    parser.add_argument("--seed", type=int, default=1, help="of the first end (default: 1)")
    arguments = parser.parse_args()
    broken = []
    for kind in (HubEnd, AgentEnd, RankEnd):
        began, sent = time.monotonic(), 0
        with memory_is_bounded(os.getpid()):
            while sent < arguments.n / 3:
                seed = arguments.seed + sent
                try:
                    _attack(kind, seed)
                except Exception:  # noqa: BLE001 - the next seed is still tried
                    traceback.print_exc()
                    broken.append(f"{kind.name}, seed {seed}")
                sent += _PER_END
        print(f"{kind.name}: {sent} frames in {time.monotonic() - began:.0f} s", flush=True)
    print("\n".join(["broken:", *broken]) if broken else "all ends are whole")
    return 1 if broken else 0


def _attack(kind: Any, seed: int) -> None:
    rng = random.Random(seed)
    if kind is not RankEnd:
        with closing(kind(rng)) as end:
            _send(end)
        return
    pool = make_pool(2)
    try:
        _send(RankEnd(rng, pool))
    finally:
        pool.stop()


def _send(end: Any) -> None:
    for number in range(1, _PER_END + 1):
        end.attack()
        if number % (_PER_END // 4) == 0:
            end.check()


if __name__ == "__main__":
    sys.exit(main())
