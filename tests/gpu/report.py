"""One report of all trials on a GPU: what it ran on, and how each went."""

import json
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Outcome = Literal["passed", "failed", "skipped"]

_TORCH_FACTS = """
import json, torch
import torch.distributed as dist
has = torch.cuda.is_available()
print(json.dumps({
    "torch": torch.__version__,
    "CUDA of torch": torch.version.cuda or "none",
    "NCCL": ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else "none",
    "GPUs": [
        f"{torch.cuda.get_device_name(i)}, "
        f"{torch.cuda.get_device_properties(i).total_memory / 2**30:.1f} GiB, "
        f"compute capability {'.'.join(map(str, torch.cuda.get_device_capability(i)))}"
        for i in range(torch.cuda.device_count())
    ] if has else [],
}))
"""


@dataclass
class Trial:
    """One test, at one place."""

    name: str
    outcome: Outcome
    seconds: float
    reason: str = ""  #: why it was skipped, or the last line of what went wrong
    seen: dict[str, str] = field(default_factory=dict)  #: what was measured


def environment(mode: str) -> dict[str, Any]:
    """Hardware and software, asked in another process: this one must not use the GPU."""
    done = subprocess.run(
        [sys.executable, "-c", _TORCH_FACTS], capture_output=True, text=True, check=False
    )
    last = done.stdout.splitlines()[-1:] if done.returncode == 0 else []
    about_torch = json.loads(last[0]) if last else {"torch": done.stderr[-500:]}
    return {
        "mode": mode,
        "Python": platform.python_version(),
        "system": platform.platform(),
        **about_torch,
        "driver": _driver(),
    }


def _driver() -> str:
    command = shutil.which("nvidia-smi")
    if command is None:
        return "no nvidia-smi"
    done = subprocess.run(
        [command, "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    return (done.stdout or done.stderr).strip().splitlines()[0] if done.returncode == 0 else "none"


def write(folder: Path, facts: dict[str, Any], trials: list[Trial]) -> Path:
    """Write ``report.json`` and ``report.md``; gives the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"environment": facts, "trials": [asdict(trial) for trial in trials]}
    (folder / "report.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    path = folder / "report.md"
    path.write_text(as_markdown(facts, trials), encoding="utf-8")
    return path


def as_markdown(facts: dict[str, Any], trials: list[Trial]) -> str:
    """For a person: the sums, what it ran on, a line for each trial."""
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for trial in trials:
        counts[trial.outcome] += 1
    lines = ["# Trials on a GPU", "", ", ".join(f"{n} {kind}" for kind, n in counts.items()), ""]
    for name, value in facts.items():
        text = "; ".join(value) or "none" if isinstance(value, list) else value
        lines.append(f"- {name}: {text}")
    lines += ["", "| trial | outcome | seconds | seen |", "|---|---|---|---|"]
    for trial in trials:
        seen = [f"{name}: {value}" for name, value in trial.seen.items()]
        cells = [trial.name, trial.outcome, f"{trial.seconds:.1f}"]
        cells.append("; ".join([*seen, trial.reason] if trial.reason else seen))
        lines.append("| " + " | ".join(_cell(each) for each in cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
