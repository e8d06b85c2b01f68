"""Faults in a row on one pool: ``python -m tests.soak --seed 1 -n 1000 [--kind TEXT]``.

After each, the next cell must compute the right values, sums, sub-groups and replicas, show its own
output only, and no process, descriptor or memory may be left. What is wrong is told with seed and
step; ``--first K -n 1`` repeats one step alone. Exit status 1 if anything is wrong.
"""

import argparse
import faulthandler
import os
import random
import signal
import sys
import time
import types
from collections import Counter

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.pool import Pool
from nbddp.errors import NbddpError
from nbddp.notebook import source_check
from nbddp.settings import PRELOAD_ENV, Settings
from tests.soak import purpose
from tests.soak.checking import Checks
from tests.soak.driving import run_fault
from tests.soak.kinds import KINDS
from tests.support import leaks
from tests.support.views import RecordingView

_MEMORY_EVERY = 20
#: One step with its checks; afterwards the stacks of all threads are told, and the soak ends.
_STUCK_S = 400.0


class Soak:
    """One pool after another, each until something is wrong with it."""

    def __init__(self, ranks: int, seed: int, kind: str) -> None:
        self._ranks = ranks
        self._seed = seed
        self._kinds = [fault for fault in (*KINDS, *purpose.KINDS) if kind in fault.name]
        self.pools = 0
        self._pool: Pool | None = None
        self._checks: Checks | None = None
        self.most: dict[str, tuple[int, float]] = {}
        self.struck: Counter[str] = Counter()  #: faults on purpose, by their verbs

    def step(self, number: int) -> tuple[str, list[str]]:
        """One fault and its checks; gives its name and what is wrong."""
        chance = random.Random(f"{self._seed}/{number}")
        fault = chance.choice(self._kinds)
        plan = fault.plan(chance, self._ranks)
        faults = fault.texts(chance, self._ranks)
        pool, checks = self._get()
        wrong: list[str] = []
        told = ""
        try:
            done = run_fault(pool, fault, plan, number, faults)
            wrong, told = done.violations, done.error
            self.struck.update(" ".join(text.split()[2:4]).strip(",") for text in done.struck)
            wrong += checks.after(
                number, done.hit, fault.then, exits=fault.exits, stays=fault.stays
            )
            wrong += checks.resources(memory=number % _MEMORY_EVERY == 0)
        except NbddpError as error:
            wrong.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")
        for name, (fds, size) in checks.summary().items():
            old = self.most.get(name, (0, 0.0))
            self.most[name] = (max(old[0], fds), max(old[1], size))
        if wrong:
            wrong += [f"error: {line}" for line in told.splitlines()[-8:]]
            wrong.append(f"plan: {plan}; --fault {faults!r}")
            self.drop()
        return fault.name, wrong

    def _get(self) -> tuple[Pool, Checks]:
        if self._pool is None or self._checks is None:
            self.pools += 1
            self._pool = Pool(
                PoolOptions.checked(self._ranks),
                Settings.from_env(),
                lambda pool, run: RecordingView(),
                source_check.check_source,
            )
            self._checks = Checks(self._pool)
        return self._pool, self._checks

    def drop(self) -> None:
        """Stop the pool."""
        pool, self._pool, self._checks = self._pool, None, None
        if pool is not None:
            pool.stop()


def main() -> int:
    """Run, tell, and give the exit status."""
    arguments = _parse()
    os.environ[leaks.RUN_ENV] = str(os.getpid())
    os.environ.setdefault(PRELOAD_ENV, "torch._dynamo")  # DDP loads it: seconds in each fresh rank
    signal.signal(signal.SIGINT, _ignore)  # presses between cells have no receiver
    soak = Soak(arguments.ranks, arguments.seed, arguments.kind)
    began, bad = time.monotonic(), 0
    last = arguments.first + arguments.n
    try:
        for number in range(arguments.first, last):
            faulthandler.dump_traceback_later(_STUCK_S, exit=True)
            step_began = time.monotonic()
            name, wrong = soak.step(number)
            took_s = time.monotonic() - step_began
            print(f"{number:5} {took_s:5.1f} s  {name}", flush=True)
            if wrong:
                bad += 1
                print(f"VIOLATION seed {arguments.seed} step {number}: {name}")
                print(*(f"    {line}" for line in wrong), sep="\n", flush=True)
            if arguments.minutes and time.monotonic() - began > 60 * arguments.minutes:
                last = number + 1
                break
    finally:
        faulthandler.cancel_dump_traceback_later()
        soak.drop()
    for name, (fds, size) in sorted(soak.most.items()):
        print(f"{name}: at most {fds:+} descriptors, {size / 1e6:+.1f} MB")
    if soak.struck:
        found = ", ".join(f"{verb} {n}" for verb, n in soak.struck.most_common())
        print(f"{soak.struck.total()} faults on purpose struck: {found}")
    steps = last - arguments.first
    print(
        f"{steps} steps, {bad} of them with violations; {soak.pools} pools; "
        f"seed {arguments.seed}; {time.monotonic() - began:.0f} s; load {os.getloadavg()[0]:.1f}"
    )
    return 1 if bad else 0


def _ignore(signum: int, frame: types.FrameType | None) -> None:
    del signum, frame


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-n", type=int, default=100, help="steps (default: 100)")
    parser.add_argument("--first", type=int, default=1, help="number of the first step")
    parser.add_argument("--ranks", type=int, default=3, help="default: 3")
    parser.add_argument("--kind", default="", help="only kinds with this text in their names")
    parser.add_argument("--minutes", type=float, default=0.0, help="end after so many minutes")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
