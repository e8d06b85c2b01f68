"""Lets `inspect.getsource` find classes that were defined in a cell.

Runs in: the rank process. Functions carry the name of their file, and IPython keeps the source of
cells in `linecache`; classes carry only their module, and ``__main__`` has no file. Before Python
3.13 `inspect` then gives up ("source code not available").
"""

import ast
import inspect
import linecache
import types
from collections.abc import Callable
from typing import Any


def teach_inspect(cell_files: Callable[[], list[str]]) -> None:
    """Wrap `inspect.getfile`: what it finds by itself stays as it is.

    Args:
        cell_files: the names under which `linecache` has the cells, newest last.
    """
    original = inspect.getfile

    def getfile(object: Any) -> str:  # noqa: A002 - as in inspect
        try:
            return original(object)
        except (TypeError, OSError):
            file = _file_of_class(object, cell_files()) if isinstance(object, type) else None
            if file is None:
                raise
            return file

    inspect.getfile = getfile


def _file_of_class(cls: type, cell_files: list[str]) -> str | None:
    for member in vars(cls).values():
        function = inspect.unwrap(getattr(member, "__func__", member)) if callable(member) else None
        if isinstance(function, types.FunctionType):
            is_own = function.__qualname__ == f"{cls.__qualname__}.{function.__name__}"
            if is_own and function.__code__.co_filename in cell_files:
                return function.__code__.co_filename
    # Without methods: the newest cell that defines a class of that name.
    for file in reversed(cell_files):
        if _defines(file, cls.__name__):
            return file
    return None


def _defines(file: str, name: str) -> bool:
    source = "".join(linecache.getlines(file))
    if name not in source:
        return False
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return False
    return any(isinstance(node, ast.ClassDef) and node.name == name for node in ast.walk(tree))
