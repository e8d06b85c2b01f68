"""A pretend scheduler as a program: `qsub`, `bjobs` and others.

It is no PBS, no LSF and no Flux. It takes what PSI/J 0.9.11 and agents ask of theirs, runs the job
on this machine, and answers in the form that their manuals describe. A file `hold` in the folder
keeps jobs in the queue; with `away`, `qstat` has no answer; with a pipe `gate`, `qdel` waits for
its end.

    python pretend_commands.py FOLDER COMMAND [ARGUMENT ...]
"""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

#: Both are this machine, as two lines of a file of hosts have to be.
_HOSTS = ("localhost", "127.0.0.1")
_KILLED = 271  # 256 and SIGTERM, as PBS counts


class PretendJob:
    """A job, as files in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.name = name
        self._base = folder / name.partition(".")[0]

    def _file(self, suffix: str) -> Path:
        return self._base.with_suffix(suffix)

    @property
    def script(self) -> str:
        """The script, as it was submitted."""
        return self._file(".script").read_text()

    def begin(self, scheduler: str) -> None:
        """Run the script, unless jobs are held."""
        if (self._folder / "hold").exists() or self._file(".pid").exists():
            return
        hosts = self._file(".hosts")
        hosts.write_text("".join(f"{host}\n" * 2 for host in _HOSTS))
        env = os.environ | {"PBS_JOBID": self.name, "PBS_NODEFILE": str(hosts), "PBS_NODENUM": "0"}
        if scheduler == "lsf":
            env = os.environ | {"LSB_JOBID": self.name, "LSB_DJOB_HOSTFILE": str(hosts)}
        process = subprocess.Popen(
            ["sh", "-c", f"bash {self._file('.script')}; echo $? > {self._file('.exit')}"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._file(".pid").write_text(str(process.pid))

    def delete(self) -> None:
        """End the job."""
        self._file(".deleted").touch()
        with suppress(FileNotFoundError, ProcessLookupError):
            os.killpg(int(self._file(".pid").read_text()), signal.SIGTERM)

    def exit_code(self) -> int | None:
        """The exit code; None: it has not ended."""
        if self._file(".deleted").exists():
            return _KILLED
        return int(self._file(".exit").read_text()) if self._file(".exit").exists() else None

    def is_running(self) -> bool:
        """Whether it has begun and not ended."""
        return self._file(".pid").exists() and self.exit_code() is None


def submit(folder: Path, script: Path, scheduler: str) -> str:
    """Take a script, and give the name of the job."""
    directives = re.findall(r"^#(?:PBS|BSUB) +-(\S+) *(.*)$", script.read_text(), re.MULTILINE)
    if ("q", "nowhere") in directives or ("q", '"nowhere"') in directives:
        sys.exit(f"{Path(sys.argv[2]).name}: Unknown queue")
    number = len(list(folder.glob("*.script"))) + 1
    copy = folder / f"{number}.copy"
    copy.write_text(script.read_text())
    copy.rename(folder / f"{number}.script")  # a test that looks for it finds it whole
    job = PretendJob(folder, f"{number}.head" if scheduler == "pbs" else str(number))
    job.begin(scheduler)
    return job.name


def pbs_record(job: PretendJob) -> dict[str, object]:
    """What `qstat -f -F json -x` has of a job."""
    code = job.exit_code()
    if code is not None:
        return {"job_state": "F", "Exit_status": code}
    if job.is_running():
        return {"job_state": "R"}
    return {"job_state": "Q", "comment": "Not Running: Insufficient amount of resource: ncpus"}


def lsf_record(job: PretendJob) -> dict[str, str]:
    """What `bjobs -json` has of a job."""
    code = job.exit_code()
    state = {None: "RUN" if job.is_running() else "PEND", 0: "DONE"}.get(code, "EXIT")
    reason = "TERM_OWNER: job killed by owner" if code == _KILLED else ""
    empty = {"KILL_REASON": "", "SUSPEND_REASON": ""}
    return {"JOBID": job.name, "STAT": state, "EXIT_REASON": reason, **empty}


def jsrun(words: list[str]) -> int:
    """Start the command once for each node, on this machine."""
    at = next(number for number, word in enumerate(words) if word.startswith("/"))
    nodes = int(words[words.index("--nrs") + 1])
    tasks = [
        subprocess.Popen(words[at:], env=os.environ | {"JSM_NAMESPACE_RANK": str(node)})
        for node in range(nodes)
    ]
    return max(task.wait() for task in tasks)


def say(text: str) -> None:
    """Write a line of the answer."""
    sys.stdout.write(f"{text}\n")


def main() -> None:
    """Answer one command."""
    folder, command, *words = Path(sys.argv[1]), *sys.argv[2:]
    job = PretendJob(folder, words[-1])
    match command:
        case "qsub":
            say(submit(folder, Path(words[-1]), "pbs"))
        case "bsub":
            say(f"Job <{submit(folder, Path(words[-1]), 'lsf')}> is submitted to queue <normal>.")
        case "qstat" if (folder / "away").exists():
            with (folder / "away").open("a") as questions:
                questions.write("1")
            sys.exit("qstat: cannot connect to server head")
        case "qstat" if "json" in words:
            job.begin("pbs")
            say(json.dumps({"Jobs": {job.name: pbs_record(job)}}))
        case "qstat":
            limit = re.search(r"-l walltime=(\S+)", job.script)
            limit_text = limit[1] if limit else ""
            say(f"Job Id: {job.name}\n    Resource_List.walltime = {limit_text}\n")
        case "bjobs" if "-json" in words:
            job.begin("lsf")
            say(json.dumps({"COMMAND": "bjobs", "JOBS": 1, "RECORDS": [lsf_record(job)]}))
        case "bjobs":
            limit = re.search(r"-W (\S+)", job.script)
            say(f"{limit[1]} L" if limit else "-")
        case "qdel" | "bkill":
            if (folder / "gate").exists():
                (folder / "gate").read_bytes()
            job.delete()
        case "jsrun":
            sys.exit(jsrun(words))
        case "flux":
            say(os.environ["PRETEND_FLUX_LEFT"])
        case _:
            sys.exit(f"{command}: there is no such command")


if __name__ == "__main__":
    main()
