"""The types of faults, and the moments of their events.

A fault is a cell and a plan: what happens to its ranks, or which button is pressed, and when.
Random numbers come from the step's own generator, so that a step can be repeated alone.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

#: The kinds of events. ``press``: the stop button. ``kill``, ``stop`` and ``continue`` are
#: signals to ranks. ``restart``: ``%ddp restart -r``.
Act = Literal["press", "kill", "stop", "continue", "restart"]
#: The moment from which an event's delay counts.
Since = Literal["begin", "in", "event", "end"]


@dataclass(frozen=True)
class Event:
    """One thing that happens while a cell runs, or after it."""

    act: Act
    delay_s: float
    since: Since = "event"  #: the begin of the cell, its first output, the event before, its end
    ranks: tuple[int, ...] = ()


Plan = list[Event]
MakePlan = Callable[[random.Random, int], Plan]


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Args:
        name: of the kind.
        code: the cell; empty: there is none, and things happen between two cells.
        plan: makes the events from a generator and the number of ranks.
        use: what the notebook does: a cell, or a transfer of values.
        exits: ranks may exit by the cell itself, or by what happens to them.
        stays: a rank may be inside C code that nothing ends.
        timeout_s: of the cell.
        then: a cell that must succeed afterwards on every rank that is not fresh.
        texts: makes the faults on purpose of the cell, as the plan is made.
    """

    name: str
    code: str
    plan: MakePlan = lambda chance, n: []
    use: Literal["cell", "push", "pull"] = "cell"
    exits: bool = False
    stays: bool = False
    timeout_s: float | None = None
    then: str = ""
    texts: Callable[[random.Random, int], str] = lambda chance, n: ""


def press(low: float, high: float, since: Since = "in", presses: int = 1) -> MakePlan:
    """The stop button, ``presses`` times with short pauses."""

    def plan(chance: random.Random, n: int) -> Plan:
        first = Event("press", chance.uniform(low, high), since)
        pauses = [chance.choice([0.001, 0.02, 0.1, 0.4]) for _ in range(presses - 1)]
        return [first, *(Event("press", chance.uniform(0, pause)) for pause in pauses)]

    return plan


def kill(low: float, high: float, since: Since = "in") -> MakePlan:
    """SIGKILL for one rank."""

    def plan(chance: random.Random, n: int) -> Plan:
        return [Event("kill", chance.uniform(low, high), since, (chance.randrange(n),))]

    return plan


def kill_all(low: float, high: float, pause_s: float, since: Since = "in") -> MakePlan:
    """SIGKILL for every rank, in any order, with pauses of at most ``pause_s``."""

    def plan(chance: random.Random, n: int) -> Plan:
        ranks = chance.sample(range(n), n)
        first = Event("kill", chance.uniform(low, high), since, (ranks[0],))
        others = [Event("kill", chance.uniform(0, pause_s), "event", (r,)) for r in ranks[1:]]
        return [first, *others]

    return plan


def restart(groups: Callable[[int], list[tuple[int, ...]]], since: Since = "begin") -> MakePlan:
    """``%ddp restart -r`` for each of these sets of ranks, one after another."""

    def plan(chance: random.Random, n: int) -> Plan:
        return [Event("restart", chance.uniform(0, 0.2), since, ranks) for ranks in groups(n)]

    return plan


def stop_and_continue(for_s: float, presses: int = 0) -> MakePlan:
    """SIGSTOP for one rank, perhaps the stop button, then SIGCONT."""

    def plan(chance: random.Random, n: int) -> Plan:
        rank = (chance.randrange(n),)
        presses_then = [Event("press", chance.uniform(0.05, 0.3)) for _ in range(presses)]
        return [
            Event("stop", chance.uniform(0, 0.2), "in", rank),
            *presses_then,
            Event("continue", chance.uniform(0.1, for_s), "event", rank),
        ]

    return plan


def both(*plans: MakePlan) -> MakePlan:
    """The events of several plans, one plan after the other."""

    def plan(chance: random.Random, n: int) -> Plan:
        return [event for each in plans for event in each(chance, n)]

    return plan
