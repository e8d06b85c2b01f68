"""The options of Kubernetes agents, checked, and the file of ``--k8s-template``.

Runs in: the notebook's process and the driver of Kubernetes agents.
"""

from pathlib import Path
from typing import Any

import yaml

from nbddp.controller.launch.k8s_pods import AgentPods, checked_template
from nbddp.errors import BadOptionError

_DEFAULT_PYTHON = "python"
_DEFAULT_KIND = "job"


def agent_pods(
    *,
    nnodes: int,
    nproc_per_node: int,
    image: str,
    kind: str,
    device: str,
    python: str,
    template: str,
) -> AgentPods:
    """Check the options.

    Args:
        nnodes: number of pods.
        nproc_per_node: ranks in each.
        image: of the container.
        kind: ``job``, ``jobset`` or ``trainjob``; empty: ``job``.
        device: the value of ``--device``.
        python: the interpreter in the image; empty: ``python``.
        template: path of a file with the user's pod; empty: there is none.

    Raises:
        BadOptionError: an option is missing or not legal.
    """
    if not image:
        raise BadOptionError(
            "--launcher k8s needs the image of the agents, with Python, torch and nbddp in the "
            "versions of this notebook; legal: --image REGISTRY/NAME:TAG"
        )
    kind = kind or _DEFAULT_KIND
    if template and kind == "trainjob":
        raise BadOptionError(
            "--k8s-template goes with --kind job or jobset; the pods of a trainjob come from the "
            "TrainingRuntime torch-distributed. Leave out one of the two"
        )
    return AgentPods(
        nnodes=nnodes,
        nproc_per_node=nproc_per_node,
        image=image,
        kind=kind,
        device=device,
        python=python or _DEFAULT_PYTHON,
        template=_read_template(Path(template).expanduser()) if template else {},
    )


def _read_template(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadOptionError(
            f"--k8s-template {path}: {error.strerror}; legal: a file of YAML with a Pod"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = " ".join(str(error).split())
        raise BadOptionError(f"--k8s-template {path} is not YAML: {where}") from None
    return checked_template(content, str(path))


def as_yaml(objects: list[dict[str, Any]]) -> str:
    """Write objects as ``kubectl apply -f`` reads them."""
    text: str = yaml.safe_dump_all(objects, sort_keys=False)
    return text
