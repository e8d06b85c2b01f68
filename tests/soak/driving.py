"""Runs one fault on a pool: the cell in this thread, its events in another."""

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from nbddp.controller.hub.run import CellEvent
from nbddp.controller.pool import CellOptions, Pool
from nbddp.controller.state.rank_state import RankState
from nbddp.errors import CellError, NbddpError
from nbddp.wire.fault_grammar import parse_faults
from nbddp.wire.messages import FaultStruck, Output
from tests.soak.faults import Event, Fault, Since
from tests.support.views import RecordingView

#: A cell that has not ended so long after the first press, or in all, does not end by itself.
PRESSED_LIMIT_S = 20.0
LIMIT_S = 90.0
#: The prompt after a second press.
PROMPT_S = 2.0


@dataclass
class Done:
    """The events and the end of one step."""

    presses: list[float] = field(default_factory=list)  #: when (`time.monotonic`)
    hit: set[int] = field(default_factory=set)  #: ranks that were killed or restarted
    ended_at: float = 0.0
    error: str = ""  #: of the cell
    struck: list[str] = field(default_factory=list)  #: faults on purpose, in words
    violations: list[str] = field(default_factory=list)


class _View(RecordingView):
    def __init__(self, mark: threading.Event, done: Done) -> None:
        super().__init__()
        self._mark = mark
        self._done = done

    def show(self, event: CellEvent) -> None:
        if isinstance(event, Output) and "in" in event.text:
            self._mark.set()
        elif isinstance(event, FaultStruck):
            self._done.struck.append(event.text)


class Actor:
    """Does what a plan says, in a thread of its own."""

    def __init__(self, pool: Pool, plan: Sequence[Event], done: Done) -> None:
        self._pool = pool
        self._plan = plan
        self._done = done
        self.begun, self.marked, self.ended = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._run, name="soak-actor", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the last event."""
        self._thread.join()

    def _run(self) -> None:
        for event in self._plan:
            self._wait_for(event.since)
            time.sleep(event.delay_s)
            self._do(event)

    def _wait_for(self, since: Since) -> None:
        match since:
            case "begin":
                self.begun.wait()
            case "in":
                while not (self.marked.wait(0.002) or self.ended.is_set()):
                    pass
            case "end":
                self.ended.wait()
            case "event":
                pass

    def _do(self, event: Event) -> None:
        match event.act:
            case "press":
                if not self.ended.is_set():
                    self._done.presses.append(time.monotonic())
                    os.kill(os.getpid(), signal.SIGINT)
            case "restart":
                self._done.hit.update(event.ranks)
                try:
                    self._pool.restart(event.ranks)
                except NbddpError as error:
                    text = str(error).splitlines()[0]
                    self._done.violations.append(f"restart -r {event.ranks}: {text}")
            case "kill" | "stop" | "continue":
                number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}.get(
                    event.act, signal.SIGCONT
                )
                for info in self._pool.ranks():
                    alive = info.state in (RankState.IDLE, RankState.BUSY, RankState.STARTING)
                    if info.rank in event.ranks and info.pid and alive:
                        if event.act == "kill":
                            self._done.hit.add(info.rank)
                        with suppress(ProcessLookupError):
                            os.kill(info.pid, number)


class Watchdog:
    """Presses twice where a step does not end by itself, and says so."""

    def __init__(self, done: Done) -> None:
        self._done = done
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="soak-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The step has ended."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._over.wait(0.1):
            now, presses = time.monotonic(), self._done.presses
            since = f"{now - presses[0]:.1f} s after a press" if presses else "without a press"
            is_late = bool(presses) and now - presses[0] > PRESSED_LIMIT_S
            if is_late or now - began > LIMIT_S:
                self._done.violations.append(f"the cell ran on {since}")
                for _ in range(2):
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(0.2)
                self._over.wait(60)
                return


def run_fault(pool: Pool, fault: Fault, plan: Sequence[Event], step: int, faults: str = "") -> Done:
    """Run a fault; gives what happened. The pool may be anything afterwards.

    Args:
        pool: where.
        fault: what.
        plan: the events, of `Fault.plan`.
        step: its number.
        faults: on purpose, of `Fault.texts`.
    """
    done = Done()
    actor, watchdog = Actor(pool, plan, done), Watchdog(done)
    try:
        _use(pool, fault, step, actor, done, faults=faults)
    finally:
        done.ended_at = time.monotonic()
        watchdog.stop()
        actor.ended.set()
        actor.join()
    if len(done.presses) > 1 and fault.use == "cell":
        late_s = done.ended_at - done.presses[1]
        if late_s > PROMPT_S:
            done.violations.append(f"the prompt came {late_s:.1f} s after the second press")
    return done


def _use(pool: Pool, fault: Fault, step: int, actor: Actor, done: Done, *, faults: str) -> None:
    value = np.arange(2_000_000) if fault.use == "push" else None
    actor.begun.set()
    try:
        if fault.use == "push":
            pool.push(pushed=value)
        elif fault.use == "pull":
            pool.pull("torch.ones(2_000_000) * rank")
        elif fault.code:
            code = f"step = {step}\n{fault.code}\n"
            options = CellOptions(
                pool.all_ranks,
                timeout_s=fault.timeout_s,
                execution_count=step,
                faults=parse_faults(faults, pool.world_size) if faults else (),
            )
            pool.run_cell(code, options, lambda pool, run: _View(actor.marked, done))
    except CellError as error:
        done.error = str(error)
    except NbddpError as error:
        done.error = str(error)
        # A transfer may meet a death; a cell must not be refused for what a fault has done to it.
        if fault.use == "cell":
            done.violations.append(f"refused: {str(error).splitlines()[0]}")
