"""Reads which package a Python of another machine lacks, and says how to install it.

Runs in: the notebook's process.
"""

import re
import shlex
from importlib import metadata

_MISSING = re.compile(r"No module named '?(?P<module>\w+)")
_NBDDP = "nbddp"
#: The beginning of a requirement of nbddp that is no extra: ``torch``.
_NAME = re.compile(r"^[\w.-]+")


def missing_package(output: str, python: str, place: str, *, by_ssh: bool) -> str:
    """Say that an agent did not start since its Python lacks a package, and what to do.

    Args:
        output: what the program has written.
        python: the interpreter that ran it.
        place: the machine, in words; with ``by_ssh`` as the user's ssh knows it.
        by_ssh: whether the user reaches the machine by ssh.

    Returns:
        A sentence and the next step; empty: the output tells of no such thing.
    """
    says_missing = _MISSING.search(output)
    if says_missing is None:
        return ""
    module = says_missing["module"]
    lacks = module if module == _NBDDP else f"the package {module}, which nbddp needs"
    command = shlex.join([python, "-m", "pip", "install", *_needed(module)])
    run = f"`ssh {place} {command}` installs" if by_ssh else f"`{command}` there installs"
    return (
        f"{python} on {place} lacks {lacks}. Next: {run} what is missing, or --python PATH names "
        "the Python of an environment there that has nbddp and the torch of this notebook"
    )


def _needed(module: str) -> list[str]:
    """Return what pip has to install, with the torch of this notebook."""
    needed = [_NBDDP] if module == _NBDDP else []
    for requirement in metadata.requires(_NBDDP) or []:
        name = _NAME.match(requirement)
        if name is None or "extra ==" in requirement:
            continue
        if name[0] == "torch":
            needed.append(_torch())
        elif module != _NBDDP:
            needed.append(name[0])
    return needed


def _torch() -> str:
    try:
        return f"torch=={metadata.version('torch').partition('+')[0]}"
    except metadata.PackageNotFoundError:  # with --via the notebook needs none
        return "torch"
