"""``python -m nbddp.controller.launch.psij_driver``: the driver of a batch job that runs agents.

Runs in: a process of its own, which ends with its standard input and cancels its job then. So the
notebook's process stays free of the threads of PSI/J, and its end, also by a signal that it cannot
catch, leaves no job in the queue.

    notebook --invitation, on stdin--> driver --a file that its owner reads--> agent on each node
"""

import argparse
import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psij
from psij.executors.batch.batch_scheduler_executor import BatchSchedulerExecutorConfig

from nbddp.controller.launch import driver_report
from nbddp.controller.launch.driver_output import DriverOutput, read_input
from nbddp.controller.launch.engine import EngineOptions
from nbddp.controller.launch.engine_process import last_words
from nbddp.controller.launch.invitation_file import InvitationFile, home_folder
from nbddp.controller.launch.psij_job import PsijJob
from nbddp.errors import BadOptionError, PoolStartError
from nbddp.wire.invitation import Invitation

_LOOK_S = 0.3
#: PSI/J asks the scheduler so often; it would ask each 30 s by itself.
_POLL_S = 5
_FIRST_POLL_S = 1


class StatusNotes:
    """The notes of a scheduler beside the state of a job: why it waits, or why it has ended.

    PSI/J 0.9.11 drops what is said of a job whose state is as before, and raises KeyError where LSF
    gives a reason, so that it never sees the end of such a job. This class stands before the method
    that reads the scheduler's answers, and does both.

    Args:
        executor: of PSI/J.
    """

    def __init__(self, executor: Any) -> None:
        self._notes: dict[str, str] = {}
        self._trouble = ""  # of the latest question; the scheduler may be away for a while
        if not hasattr(executor, "parse_status_output"):  # that of Flux, and the local one
            return
        self._parse = executor.parse_status_output
        executor.parse_status_output = self._parse_and_note

    def of(self, job: Any) -> str:
        """Return the latest note of a job, in one line; empty: there is none."""
        text = job.status.message or self._trouble or self._notes.get(str(job.native_id), "")
        return (text.strip().splitlines() or [""])[-1]

    def _parse_and_note(self, exit_code: int, out: str) -> Any:
        try:
            statuses = self._parse(exit_code, with_reasons(out))
        except Exception as error:
            self._trouble = str(error)
            raise
        self._trouble = ""
        self._notes |= {name: status.message or "" for name, status in statuses.items()}
        return statuses


def with_reasons(answer: str) -> str:
    """Add to the records of ``bjobs -json`` the field that PSI/J reads; others stay as they are."""
    try:
        table = json.loads(answer)
        for record in table["RECORDS"]:
            names = ("EXIT_REASON", "KILL_REASON", "SUSPEND_REASON")
            record["reason"] = next((record[name] for name in names if record.get(name)), "")
    except (ValueError, KeyError, TypeError):
        return answer
    return json.dumps(table)


class Driver:
    """Submits a job, tells what becomes of it, and cancels it.

    Args:
        wanted: the job.
        folder: for its files, which all nodes see.
        output: tells the engine.
    """

    def __init__(self, wanted: PsijJob, folder: Path, output: DriverOutput) -> None:
        self._wanted = wanted
        self._folder = folder
        self._output = output
        config = BatchSchedulerExecutorConfig(
            work_directory=folder,
            queue_polling_interval=_POLL_S,
            initial_queue_polling_delay=_FIRST_POLL_S,
            queue_polling_error_threshold=sys.maxsize,  # no answer is no end of the job
        )
        self._executor = psij.JobExecutor.get_instance(wanted.executor, config=config)
        self._notes = StatusNotes(self._executor)
        #: Jobs by the number of their first agent: that of all nodes, and those in their places.
        self._jobs: dict[int, Any] = {}
        self._ended: set[int] = set()  #: numbers of jobs that have ended
        self._agent: list[str] = []
        self._name = ""
        #: Numbers of the agents by node, see `driver_report`.
        self._numbers = list(range(wanted.nnodes))

    def submit(self, agent: list[str], name: str) -> None:
        """Submit the job.

        Args:
            agent: the command of an agent.
            name: of the job.
        """
        self._agent, self._name = agent, name
        self._submit(0, self._wanted)

    def _submit(self, number: int, wanted: PsijJob) -> None:
        """Submit a job whose first agent has this number."""
        agent, name = self._agent, self._name
        program, *arguments = wanted.command(agent, str(self._folder / "hosts"))
        attributes = psij.JobAttributes(
            queue_name=wanted.attribute("queue"),
            account=wanted.attribute("account"),
            reservation_id=wanted.attribute("reservation"),
        )
        limit = wanted.duration_s
        # Without a limit of its own a job would get 10 minutes of PSI/J; 0 is none for Flux.
        attributes.duration = None if limit is None else timedelta(seconds=limit)
        if limit is None and wanted.executor in ("flux", "local"):
            attributes.duration = timedelta(0)
        attributes.custom_attributes = wanted.custom_attributes(name)
        spec = psij.JobSpec(
            executable=program,
            arguments=arguments,
            directory=None if wanted.executor == "local" else self._folder,
            resources=resources(wanted),
            attributes=attributes,
            launcher="multiple" if wanted.executor == "local" else "single",
            stdout_path=self._folder / f"out{number}",
            stderr_path=self._folder / f"err{number}",
        )
        job = self._jobs[number] = psij.Job(spec)
        self._output.tell_state(f"{self._title(job)}: is submitted")
        self._executor.submit(job)

    def serve(self) -> None:
        """Tell states until the standard input ends."""
        while (asked := read_input(_LOOK_S)) != b"":
            self._follow((asked or b"").decode())
            living = [number for number in self._jobs if number not in self._ended]
            states = [self._look(number, self._jobs[number]) for number in living]
            if latest := next(filter(None, reversed(states)), ""):
                self._output.tell_state(latest)

    def _look(self, number: int, job: Any) -> str:
        """Return the state of a job; empty: it has ended, and how is told."""
        status, note = job.status, self._notes.of(job)
        if not status.state.final:
            return f"{self._title(job)}: {status.state}{f' ({note})' if note else ''}"
        code = "" if status.exit_code is None else f" with exit code {status.exit_code}"
        how = self._end_text(number, f"{status.state}{code}", note)
        self._ended.add(number)
        first = range(self._wanted.nnodes) if number == 0 else [number]
        for agent in first:
            self._output.tell_end(agent, how)
        return ""

    def _follow(self, asked: str) -> None:
        """Submit or cancel jobs with agents in the places of lost ones."""
        for is_start, number in driver_report.read_requests(asked):
            node = number % self._wanted.nnodes
            if self._numbers[node] >= self._wanted.nnodes:
                self._cancel(self._numbers[node])
            if is_start:
                self._numbers[node] = number
                try:
                    self._submit(number, replace(self._wanted, nnodes=1))
                except (psij.SubmitException, psij.InvalidJobException, OSError) as error:
                    self._ended.add(number)
                    self._output.tell_end(number, _reason(error))

    def cancel(self) -> None:
        """Cancel the jobs that have not ended."""
        for number in self._jobs:
            self._cancel(number)

    def _cancel(self, number: int) -> None:
        job = self._jobs.get(number)
        if job is not None and not job.status.state.final:
            with suppress(psij.SubmitException):  # it has just ended, or was not submitted
                self._executor.cancel(job)

    def _title(self, job: Any) -> str:
        name = "" if job.native_id is None else job.native_id
        return f"{self._wanted.scheduler.title} job {name}".rstrip()

    def _end_text(self, number: int, how: str, note: str) -> str:
        job, output = self._jobs[number], b""
        for name in (f"out{number}", f"err{number}"):
            with suppress(OSError):
                output += (self._folder / name).read_bytes()
        look = self._wanted.scheduler.look
        hint = f". Next: try `{look} {job.native_id}` in a terminal" if look else ""
        said = f" ({note})" if note else ""
        return f"{self._title(job)} ended: {how}{said}{last_words(output)}{hint}"


def resources(wanted: PsijJob) -> Any:
    """Return what the job asks for, as PSI/J has it."""
    kind = psij.ResourceSpecV1
    if chunk := wanted.chunk():
        # The template of PBS writes `select=` and this number, and has no place for more.
        nodes = f"{wanted.nnodes}{chunk}"
        kind = type("Chunks", (kind,), {"computed_node_count": property(lambda self: nodes)})
    return kind(**wanted.resources())


def _reason(error: Exception) -> str:
    """Return what an exception says, and the one that it hides."""
    texts = [str(error).strip(), str(error.__cause__ or "").strip()]
    return ": ".join(text for text in texts if text) or type(error).__name__


def _run(wanted: PsijJob, python: str, invitation: Invitation, output: DriverOutput) -> None:
    base = Path(wanted.folder) if wanted.folder else home_folder()
    file = InvitationFile(base, invitation)
    folder = file.path.with_suffix("")
    driver = None
    try:
        folder.mkdir(mode=0o700)
        driver = Driver(wanted, folder, output)
        agent = [python or sys.executable, "-P", "-m", "nbddp", "agent"]
        driver.submit([*agent, "--connect", str(file.path)], f"nbddp-{invitation.pool_id}")
        driver.serve()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # SIGKILL ends a wait that is too long
        if driver is not None:
            driver.cancel()
        shutil.rmtree(folder, ignore_errors=True)
        file.remove()


def main() -> None:
    """Read the invitation, and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--launcher", required=True)
    parser.add_argument("--nnodes", type=int, required=True)
    parser.add_argument("--nproc-per-node", type=int, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--job", action="append", default=[])
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the job is cancelled
    invitation = Invitation.parse(os.read(sys.stdin.fileno(), 65536))
    asked = EngineOptions(
        nnodes=options.nnodes,
        nproc_per_node=options.nproc_per_node,
        python=options.python,
        device=options.device,
        job=dict(pair.split("=", 1) for pair in options.job),
    )
    output = DriverOutput()
    try:
        _run(PsijJob.checked(options.launcher, asked), options.python, invitation, output)
    except (
        *(psij.SubmitException, psij.InvalidJobException, BadOptionError, PoolStartError),
        *(OSError, ValueError, TypeError),
    ) as error:
        output.tell_failure(f"{options.launcher}: {_reason(error)}")
        sys.exit(1)


if __name__ == "__main__":
    main()
