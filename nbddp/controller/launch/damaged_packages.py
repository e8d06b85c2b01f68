"""Reads that a package of nbddp on another machine cannot be imported, and says how to see it.

Runs in: the notebook's process. Pure.
"""

import re
import shlex

from nbddp.controller.launch.missing_packages import nbddp_source

#: The last line of a traceback that an import has written.
_ERROR = re.compile(r"(?P<kind>ImportError|AttributeError|SyntaxError)(: |$)")
#: A frame of a traceback; of a SyntaxError it has no function.
_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line \d+(?:, in (?P<function>\S+))?$', re.MULTILINE)
_INSTALLED = re.compile(r"(?:site|dist)-packages/(?P<package>\w+)")
_OF_MODULE = re.compile(r"(module|from|from partially initialized module) '(?P<package>\w+)[\w.]*'")
#: Packages that pip knows by another name.
_REQUIREMENTS = {"zmq": "pyzmq", "PIL": "Pillow"}
#: Lines of the engine after those of the agent.
_OF_ENGINE = "srun: "


def damaged_package_step(output: str, python: str, command: str, where: str) -> str:
    """Return the next step where an agent ended because a package cannot be imported.

    Args:
        output: what the program has written.
        python: the interpreter that ran it, quoted for a shell.
        command: runs a program there, such as ``ssh n1``.
        where: the place of this command, in words.

    Returns:
        The step; empty: the output tells of no such thing.
    """
    lines = [line for line in output.splitlines() if line and not line.startswith(_OF_ENGINE)]
    error = _ERROR.match(lines[-1]) if lines else None
    if error is None:
        return ""
    frames = list(_FRAME.finditer(output))
    is_import = bool(frames) and frames[-1]["function"] in (None, "<module>")
    if error["kind"] == "AttributeError" and not is_import:
        return ""  # perhaps an error of nbddp
    package = _package(lines[-1], frames)
    requirement = nbddp_source() if package == "nbddp" else _REQUIREMENTS.get(package, package)
    damaged = f"{package} is damaged there" if package else "a package there is damaged"
    return (
        f"`{command} {python} -P -m nbddp --help` {where}, which should show the same error. "
        f"Perhaps {damaged}, or another version than nbddp needs: `{command} {python} -m pip "
        f"install --force-reinstall --no-deps {shlex.quote(requirement or 'PACKAGE')}`, or what "
        "has installed it, installs it again"
    )


def _package(error: str, frames: list[re.Match[str]]) -> str:
    """Return the name of the package that cannot be imported; empty: it is not known."""
    if of_module := _OF_MODULE.search(error):
        return of_module["package"]
    installed = [_INSTALLED.search(frame["file"]) for frame in frames[-1:]]
    return "".join(found["package"] for found in installed if found)
