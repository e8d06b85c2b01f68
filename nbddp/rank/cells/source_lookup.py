"""The sources of cells: `inspect.getsource` finds classes in them, tracebacks quote them.

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

#: The newest cells whose syntax trees stay after a traceback.
_PARSED_CELLS = 8
#: Where `executing` keeps what it has parsed: in each class of its sources, by file and lines and
#: by code object, and in functions, by nodes of the trees.
_CACHES = ("__source_cache_with_lines", "__executing_cache")
_CACHING = ("Source.statements_at_line", "statement_containing_node")


@contextmanager
def found_without_search(error: BaseException | None) -> Iterator[None]:
    """While its traceback is written: frames of cells, which have no file, are in ``__main__``.

    IPython asks `inspect.getmodule` for the module of each frame. That looks at the files of all
    modules if none is known for the frame's: 5 ms where torch is loaded, for each frame.
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
    """Of the frames of a traceback, and of those that are told with it."""
    found: set[str] = set()
    seen: set[int] = set()
    left = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        left += [each.__cause__, each.__context__]
        step = each.__traceback__
        while step is not None:
            found.add(step.tb_frame.f_code.co_filename)
            step = step.tb_next
    return found


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


def forget_parsed(is_cell: Callable[[str], object]) -> None:
    """Drop what older cells were parsed to for their tracebacks; they are parsed again if needed.

    The libraries that write IPython's tracebacks keep the syntax tree of each file for ever, and
    each run of a cell is a file: 30 kB for an error in a cell of one line. Real files stay.

    Args:
        is_cell: whether a file name stands for a cell.
    """
    executing, stack_data = map(sys.modules.get, ("executing.executing", "stack_data.core"))
    for kind in filter(None, (getattr(each, "Source", None) for each in (executing, stack_data))):
        for cache in filter(None, map(vars(kind).get, _CACHES)):
            cells = [key for key in cache if is_cell(getattr(key[0], "co_filename", key[0]))]
            for key in cells[:-_PARSED_CELLS]:
                cache.pop(key, None)
    for name in _CACHING:  # they give the same again at once
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
