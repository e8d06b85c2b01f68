"""A pretend `flux.job`: what PSI/J 0.9.11 uses of the Python bindings of Flux.

It is no Flux: it runs the tasks of a job on this machine. The calls have the forms of flux-python
0.88. `tests.support.psij_site` puts it where `import flux.job` finds it.
"""

import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class JobspecV1:
    """The tasks of a job, and its settings."""

    def __init__(self, command: Sequence[str], num_tasks: int) -> None:
        self.command = command
        self.num_tasks = num_tasks
        self.stdout: Any = os.devnull
        self.stderr: Any = os.devnull
        self.duration = 0.0

    @classmethod
    def from_command(
        cls,
        command: Sequence[str],
        num_tasks: int = 1,
        cores_per_task: int = 1,
        gpus_per_task: int | None = None,
        num_nodes: int | None = None,
    ) -> "JobspecV1":
        """Make one, as the bindings do."""
        return cls(command, num_tasks)


class FluxExecutorFuture(Future):  # type: ignore[type-arg]
    """The job, and its exit code when it has ended."""

    def __init__(self, spec: JobspecV1) -> None:
        super().__init__()
        self._tasks: list[subprocess.Popen[bytes]] = []
        self._spec = spec
        self._is_cancelled = False
        self._calls: list[Callable[[], Any]] = []

    def jobid(self) -> int:
        """The number of the job."""
        return 4711

    def add_jobid_callback(self, call: Callable[[Any], Any]) -> None:
        """Call it when the number is there."""
        self._calls.append(lambda: call(self))

    def add_event_callback(self, event: str, call: Callable[[Any, Any], Any]) -> None:
        """Call it at the start of the job."""
        happened = SimpleNamespace(name=event, context={})
        self._calls.append(lambda: call(self, happened))

    def run(self) -> None:
        """Run the tasks."""
        out_path, err_path = Path(self._spec.stdout), Path(self._spec.stderr)
        with out_path.open("ab") as out, err_path.open("ab") as err:
            self._tasks += [
                subprocess.Popen(
                    self._spec.command,
                    env=os.environ | {"FLUX_JOB_ID": "f4711", "FLUX_TASK_RANK": str(task)},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                )
                for task in range(self._spec.num_tasks)
            ]
        for call in self._calls:
            call()
        code = max(task.wait() for task in self._tasks)
        if self._is_cancelled:
            self.set_exception(RuntimeError("type=cancel"))
        else:
            self.set_result(code)

    def end_tasks(self) -> None:
        """End the tasks."""
        self._is_cancelled = True
        for task in self._tasks:
            task.terminate()


class FluxExecutor:
    """Runs jobs."""

    def __init__(self) -> None:
        self.jobs: list[FluxExecutorFuture] = []
        _executors.append(self)

    def submit(self, spec: JobspecV1) -> FluxExecutorFuture:
        """Run a job, when the caller has added its callbacks."""
        job = FluxExecutorFuture(spec)
        self.jobs.append(job)
        threading.Timer(0.2, job.run).start()
        return job


def cancel_async(handle: Any, jobid: int) -> None:
    """End a job."""
    for executor in _executors:
        for job in executor.jobs:
            job.end_tasks()


_executors: list[FluxExecutor] = []
