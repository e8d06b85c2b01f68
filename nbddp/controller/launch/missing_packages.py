"""Reads which package a Python of another machine lacks, and says how to install it.

Runs in: the notebook's process.
"""

import json
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from nbddp.controller.launch.engine_end import EngineEnd

_MISSING = re.compile(r"No module named '?(?P<module>\w+)")
_NBDDP = "nbddp"
#: A Python of an environment, such as ``env/bin/python3``: its pip installs packages. One of the
#: system, which is found by its name or is in one of two folders, or a script around it need not.
_OF_ENVIRONMENT = re.compile(r"(?!/usr/bin/|/bin/).*\bbin/(python|pypy)[\d.]*")
#: Below the home folder, where ssh begins.
_VENV = "nbddp-env"
#: The beginning of a requirement of nbddp that is no extra: ``torch``.
_NAME = re.compile(r"^[\w.-]+")
#: The version in a path: ``python3.12``, ``versions/3.12.1``.
_MINOR = re.compile(r"(?:python|/)(?P<minor>3\.\d+)(?![\d])")


def missing_package(output: str, python: str, place: str, *, by_ssh: bool) -> EngineEnd:
    """Say that an agent did not start since its Python lacks a package, and what to do.

    Args:
        output: what the program has written.
        python: the interpreter that ran it.
        place: the machine, in words; with ``by_ssh`` as the user's ssh knows it.
        by_ssh: whether the user reaches the machine by ssh.

    Returns:
        The packages that are missing, and the next step; empty: the output tells of no such thing.
    """
    says_missing = _MISSING.search(output)
    if says_missing is None:
        return EngineEnd("")
    module = says_missing["module"]
    lacks = module if module == _NBDDP else f"the package {module}, which nbddp needs"
    own = f"3.{sys.version_info.minor}"
    minor = _minor(output, python)
    if minor not in ("", own):
        return EngineEnd(
            f"{python} on {place} lacks {lacks}, and is Python {minor}, as its path says: all "
            f"nodes need Python {own}, which the notebook has",
            f"--python PATH names a Python {own} there that has nbddp and the torch of this "
            "notebook",
        )
    gets_environment = _OF_ENVIRONMENT.fullmatch(python) is None
    needed = _needed(_NBDDP if gets_environment else module)
    command = shlex.join([python, "-m", "pip", "install", *needed])
    then = ""
    if gets_environment:  # those of Debian, Fedora and others let pip install nothing
        venv = shlex.join([python, "-m", "venv", _VENV])
        command = (
            f"{venv} && {shlex.join([f'{_VENV}/bin/python', '-m', 'pip', 'install', *needed])}"
        )
        then = f" in a virtual environment, for --python {_VENV}/bin/python"
        command = shlex.quote(command) if by_ssh else command
    run = f"`ssh {place} {command}` installs" if by_ssh else f"`{command}` there installs"
    if not minor:
        asked = f"`ssh {place} {python} -V`" if by_ssh else f"`{python} -V` there"
        run = f"if {asked} says {own}, which all nodes need, {run}"
    source = nbddp_source()
    seen = ""
    if source.startswith("/") and source in needed:
        seen = f" (if {source}, from which nbddp is installed here, is there, too; else copy it)"
    return EngineEnd(
        f"{python} on {place} lacks {lacks}",
        f"{run} what is missing{then}{seen}, or --python PATH names the Python {own} of an "
        "environment there that has nbddp and the torch of this notebook",
    )


def _minor(output: str, python: str) -> str:
    """Return ``3.12`` if the path of a Python, or of its files in a traceback, says so."""
    version = _MINOR.search(python) or _MINOR.search(output)
    return "" if version is None else version["minor"]


def nbddp_source() -> str:
    """Return what pip installs nbddp from: as here, a folder, a file or an address; or its name."""
    try:
        text = metadata.distribution(_NBDDP).read_text("direct_url.json")  # PEP 610
    except metadata.PackageNotFoundError:
        return str(Path(__file__).parents[3])  # a checkout on the path of Python
    if not text:
        return _NBDDP
    origin = json.loads(text)
    url = str(origin["url"])
    if url.startswith("file://"):
        return unquote(urlsplit(url).path)
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        return f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return url


def _needed(module: str) -> list[str]:
    """Return what pip has to install, with the torch of this notebook."""
    needed = [nbddp_source()] if module == _NBDDP else []
    for requirement in _requirements():
        name = _NAME.match(requirement)
        if name is None or "extra ==" in requirement:
            continue
        if name[0] == "torch":
            needed.append(_torch())
        elif module != _NBDDP:
            needed.append(name[0])
    return needed


def _requirements() -> list[str]:
    try:
        return metadata.requires(_NBDDP) or []
    except metadata.PackageNotFoundError:  # a checkout on the path of Python
        return ["torch"]


def _torch() -> str:
    try:
        return f"torch=={metadata.version('torch').partition('+')[0]}"
    except metadata.PackageNotFoundError:  # with --via the notebook needs none
        return "torch"
