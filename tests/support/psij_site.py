"""Pretend schedulers for PSI/J: commands, and a package `flux`, that run jobs on this machine."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.support import pretend_commands, pretend_flux
from tests.support.pretend_commands import PretendJob

_COMMANDS = ("qsub", "qstat", "qdel", "bsub", "bjobs", "bkill", "jsrun", "flux")


def reason_to_skip() -> str:
    """Why PSI/J cannot be tried here; empty: it can."""
    if importlib.util.find_spec("psij") is None:
        return "PSI/J is not installed: pip install 'nbddp[psij]'"
    return ""


def allow_root(patch: pytest.MonkeyPatch) -> None:
    """Let Open MPI run as root, who runs the tests with Slurm."""
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        patch.setenv(name, "1")


class PretendSite:
    """A pretend cluster, whose two nodes are this machine.

    Args:
        folder: for commands and jobs.
        patch: sets the environment.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder / "jobs"
        commands, packages = folder / "commands", folder / "packages"
        for made in (self._folder, commands, packages / "flux"):
            made.mkdir(parents=True)
        for name in _COMMANDS:
            program = f'{sys.executable} {pretend_commands.__file__} {self._folder} {name} "$@"'
            (commands / name).write_text(f"#!/bin/sh\nexec {program}\n")
            (commands / name).chmod(0o755)
        (packages / "flux" / "__init__.py").write_text("class Flux: ...\n")
        shutil.copy(pretend_flux.__file__, packages / "flux" / "job.py")
        patch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
        patch.setenv("PYTHONPATH", f"{packages}:{os.environ['PYTHONPATH']}")
        patch.setenv("PRETEND_FLUX_LEFT", "300")
        allow_root(patch)

    def hold(self) -> None:
        """Keep new jobs in the queue."""
        (self._folder / "hold").touch()

    def go_away(self) -> None:
        """Give no answer to `qstat` any more."""
        (self._folder / "away").touch()

    def delay_deletion(self) -> Path:
        """Let `qdel` wait until the pipe that is returned is opened and closed."""
        gate = self._folder / "gate"
        os.mkfifo(gate)
        return gate

    def unanswered(self) -> int:
        """How often `qstat` had no answer."""
        return (self._folder / "away").stat().st_size

    def jobs(self) -> list[PretendJob]:
        """All jobs."""
        return [PretendJob(self._folder, path.stem) for path in self._folder.glob("*.script")]
