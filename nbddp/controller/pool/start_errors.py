"""The error of a start that has failed, and the next step where torch cannot be imported.

Runs in: the notebook's process. Pure.
"""

import re
import shlex
import sys
from collections.abc import Sequence

from nbddp.controller.options import PoolOptions
from nbddp.controller.state import AnnounceFailure, PoolSnapshot
from nbddp.errors import BadOptionError, PoolStartError
from nbddp.wire.message_types import NodeFacts

_ERROR = re.compile(r"(ImportError|ModuleNotFoundError|OSError|AttributeError|SyntaxError)(: |$)")
#: A line of a traceback: a statement that imports torch, or a module of torch that is imported.
_OF_TORCH = re.compile(
    r"^\s+(import|from) torch\b|^\s+File \".*/torch/[^\"]*\", line \d+, in <module>$", re.MULTILINE
)
_CODE = "import torch.distributed"
#: Engines that start the agent with the Python of the notebook, unless `--python` names another.
_OWN_PYTHON = ("local", "ssh", "slurm")


def start_error(
    failure: AnnounceFailure,
    snapshot: PoolSnapshot,
    nodes: Sequence[NodeFacts],
    options: PoolOptions,
) -> Exception:
    """Return the error of a start.

    Args:
        failure: has the reason.
        snapshot: knows the nodes of the ranks.
        nodes: the facts about them, if they are machines of their own.
        options: of the pool.
    """
    if failure.error is not None and failure.error.ename == BadOptionError.__name__:
        return BadOptionError(failure.error.evalue)
    step = ""
    if failure.exited is not None:
        node = snapshot.ranks[failure.exited.rank].node
        host = nodes[node].host if nodes else ""
        step = torch_step(failure.exited.last_output, node, host, options)
    then = f". Next: {step}" if step else ""
    error = PoolStartError(f"the pool did not start: {failure.reason}{then}")
    if failure.error is not None:
        error.add_note("".join(failure.error.traceback))
    return error


def torch_step(output: str, node: int, host: str, options: PoolOptions) -> str:
    """Return what shows the error, and what to do then.

    Args:
        output: the last words of a rank that ended while it started.
        node: of the rank.
        host: the name of its machine; empty: it is this one.
        options: of the pool.

    Returns:
        The step; empty: the words do not tell of an import of torch.
    """
    last = output.strip().rpartition("\n")[2]
    if not _ERROR.match(last) or not _OF_TORCH.search(output):
        return ""
    own = sys.executable if options.launcher in _OWN_PYTHON else "python"
    command = f"{shlex.quote(options.python or own)} -c {shlex.quote(_CODE)}"
    where = f"on {host}" if host else "in a terminal"
    if options.launcher == "ssh" and node < len(options.hosts):
        # The shell there reads the words again.
        command = f"ssh {options.hosts[node]} {_in_quotes(command)}"
        where = f"on {options.via}" if options.via else "in a terminal"
    return f"`{command}` {where}, which should show the same error; then install torch there again"


def _in_quotes(command: str) -> str:
    return f'"{command}"' if not set(command) & set('"$`\\!') else shlex.quote(command)
