"""Sources of cells, for `inspect.getsource` of classes and for tracebacks.

Runs in: the rank process. Functions carry the name of their file, and IPython keeps the source of
cells in `linecache`; classes carry only their module, and ``__main__`` has no file. Before Python
3.13 `inspect` then gives up ("source code not available").
"""

import ast
import inspect
import linecache
import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import Any

#: Number of newest cells whose syntax trees stay after a traceback.
_PARSED_CELLS = 8
#: Caches of `executing`: in each class of its sources, by file and lines and by code object, and in
#: functions, by nodes of the trees.
_CACHES = ("__source_cache_with_lines", "__executing_cache")
_CACHING = ("Source.statements_at_line", "statement_containing_node")


@contextmanager
def cells_in_main_module(error: BaseException | None) -> Iterator[None]:
    """Register frames of cells, which have no file, in ``__main__`` within this block.

    IPython asks `inspect.getmodule` for the module of each frame while it writes a traceback. That
    searches the files of all modules if it does not know the frame's file: 5 ms for each frame
    where torch is loaded.
    """
    names = {name for name in _files_of(error) if name.startswith("<")}
    with suppress(OSError):  # the working folder was removed
        names |= {os.path.normcase(os.path.abspath(name)) for name in names}  # noqa: PTH100 - as there
    names -= inspect.modulesbyfile.keys()
    inspect.modulesbyfile.update(dict.fromkeys(names, "__main__"))
    try:
        yield
    finally:
        for name in names:
            inspect.modulesbyfile.pop(name, None)


def _files_of(error: BaseException | None) -> set[str]:
    """Return the files of frames of an exception, its cause and its context."""
    files: set[str] = set()
    seen: set[int] = set()
    pending = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        pending += [current.__cause__, current.__context__]
        step = current.__traceback__
        while step is not None:
            files.add(step.tb_frame.f_code.co_filename)
            step = step.tb_next
    return files


def extend_inspect(cell_files: Callable[[], list[str]]) -> None:
    """Extend `inspect.getfile` to classes of cells.

    Args:
        cell_files: returns the names by which `linecache` has the cells, newest last.
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


def forget_parsed(is_cell: Callable[[str], object]) -> None:
    """Drop cached syntax trees of older cells, which are parsed again if needed.

    The libraries that write IPython's tracebacks keep the syntax tree of each file forever, and
    each run of a cell is a file: 30 kB for an error in a cell of one line. Trees of real files
    stay.

    Args:
        is_cell: returns whether a file name is that of a cell.
    """
    executing, stack_data = map(sys.modules.get, ("executing.executing", "stack_data.core"))
    modules = (executing, stack_data)
    for kind in filter(None, (getattr(module, "Source", None) for module in modules)):
        for cache in filter(None, map(vars(kind).get, _CACHES)):
            cells = [key for key in cache if is_cell(getattr(key[0], "co_filename", key[0]))]
            for key in cells[:-_PARSED_CELLS]:
                cache.pop(key, None)
    for name in _CACHING:  # these functions fill their caches again quickly
        try:
            attrgetter(f"{name}.cache_clear")(executing)()
        except AttributeError:
            continue  # another version of the library


def _file_of_class(cls: type, cell_files: list[str]) -> str | None:
    for member in vars(cls).values():
        function = inspect.unwrap(getattr(member, "__func__", member)) if callable(member) else None
        if isinstance(function, types.FunctionType):
            is_own = function.__qualname__ == f"{cls.__qualname__}.{function.__name__}"
            if is_own and function.__code__.co_filename in cell_files:
                return function.__code__.co_filename
    # A class without methods belongs to the newest cell that defines a class of that name.
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
