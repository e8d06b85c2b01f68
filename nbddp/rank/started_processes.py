"""Refuses to start processes that cannot have what they are to run: a function of a cell.

Runs in: the rank process, the thread that starts a process.

A process that Python starts by ``spawn`` or ``forkserver`` imports the function that it runs. A
function or a class of a cell is in no file, so the process would end with an AttributeError in its
own output, and the caller would see an exit code.
"""

import copyreg
import multiprocessing.context
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing import spawn
from types import FunctionType
from typing import Any

from nbddp.errors import BadOptionError

_MAIN = "__main__"
#: Items of a list that are looked at: it may be a whole dataset.
_MAX_ITEMS = 64


def install() -> None:
    """Refuse such processes from now on."""
    for name in ("SpawnProcess", "ForkServerProcess"):
        kind: Any = getattr(multiprocessing.context, name, None)
        original = getattr(kind, "_Popen", None)
        if original is not None:
            kind._Popen = staticmethod(_refusing(original))


def _refusing(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def start(process: Any) -> Any:
        prepared = spawn.get_preparation_data(process.name)
        has_file = {"init_main_from_path", "init_main_from_name"} & prepared.keys()  # by %run
        name = "" if has_file else next(_names_of_cells(process), "")
        if name:
            method = process._start_method
            raise BadOptionError(
                f"{name} is defined in a cell, and a process of start_method={method!r} can only "
                "import it from a file\n"
                f"  next: call {name} in the cell: the ranks are processes already; or import it "
                "from a file (%%writefile makes one); or use start_method='fork'"
            )
        return original(process)

    return start


def _names_of_cells(process: Any) -> Iterator[str]:
    """The functions and classes of cells that a process would import."""
    target, args, kwargs = process._target, process._args, process._kwargs
    for value in (target, *args, *kwargs.values()):
        items = value if isinstance(value, tuple | list) else (value,)
        for item in islice(items, _MAX_ITEMS):
            kind = item if isinstance(item, FunctionType | type) else type(item)
            if getattr(kind, "__module__", "") == _MAIN and (kind is item or _needs_class(kind)):
                yield kind.__qualname__


def _needs_class(kind: Any) -> bool:
    """Whether a process that gets an object needs its class; it may be sent in another way."""
    own = (vars(base) for base in kind.__mro__ if base.__module__ == _MAIN)
    has_own = any("__reduce__" in names or "__reduce_ex__" in names for names in own)
    return not has_own and kind not in copyreg.dispatch_table
