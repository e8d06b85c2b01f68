"""The folders of modules that the user has added to the import path of the notebook.

Runs in: the notebook's process.
"""

import sys
from collections.abc import Iterable
from pathlib import Path


def user_paths(paths: Iterable[str]) -> list[str]:
    """Return those that do not belong to the interpreter or its environment.

    Another machine has an interpreter of its own, with paths of its own.

    >>> import sys
    >>> user_paths(["/home/me/project", sys.prefix + "/lib"])
    ['/home/me/project']
    """
    own = [Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
    return [
        path
        for path in paths
        if not path or not any(Path(path).resolve().is_relative_to(prefix) for prefix in own)
    ]
