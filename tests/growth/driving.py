"""Runs cells of one kind: in a real notebook kernel, or by a script through the Python API."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tests.growth.kinds import Kind
from tests.support.kernel import Kernel, running_kernel

#: Guards against hanging; nothing is measured with it.
_LIMIT_S = 300.0
_COLLECT = "import gc; gc.collect();"
_SCRIPT = """
import gc, json, sys
import nbddp
pool = nbddp.start({ranks})
told, sys.stdout = sys.stdout, open("/dev/null", "w")
for line in sys.stdin:
    code, status = json.loads(line), "ok"
    try:
        pool.run(code)
    except nbddp.CellError:
        status = "error"
    gc.collect() if not code else None
    print(json.dumps([status, [info.pid for info in pool.ranks()]]), file=told, flush=True)
pool.stop()
"""


class Driver(Protocol):
    """Runs cells, one after another."""

    pid: int  #: of the notebook's process, or of the script

    def run(self, number: int) -> None:
        """Run the next cell; fails if it does not end as it should."""

    def collect(self) -> list[int]:
        """Collect garbage in all processes that run code; gives the pids of the ranks."""


class _Notebook:
    def __init__(self, kernel: Kernel, kind: Kind) -> None:
        self._kernel = kernel
        self._kind = kind
        self.pid = kernel.process.pid

    def run(self, number: int) -> None:
        kind = self._kind
        message = self._kernel.execute(kind.cell.replace("{i}", str(number)))
        if kind.stop_at:
            self._kernel.wait_text(message, kind.stop_at, _LIMIT_S)
            self._kernel.interrupt()
        cell = self._kernel.finish(message, limit_s=_LIMIT_S)
        assert cell.status == kind.status, f"{cell.status}: {cell.error or cell.text}"
        if kind.then:
            self._ok(kind.then)
        self._kernel.cells.clear()

    def collect(self) -> list[int]:
        pids: list[int] = []
        if not self._kind.is_stock:
            self._ok("%%ddp\n" + _COLLECT)
            self._ok("import nbddp")
            told = self._ok("print([info.pid for info in nbddp.pool().ranks()])")
            pids = json.loads(told)
        self._ok(_COLLECT)
        self._kernel.cells.clear()
        return pids

    def _ok(self, code: str) -> str:
        cell = self._kernel.run(code, limit_s=_LIMIT_S)
        assert cell.status == "ok", cell.error
        return cell.text


class _Script:
    def __init__(self, process: "subprocess.Popen[str]", kind: Kind) -> None:
        self._process = process
        self._kind = kind
        self.pid = process.pid

    def run(self, number: int) -> None:
        code = self._kind.cell.removeprefix("%%ddp\n").replace("{i}", str(number))
        status, _ = self._ask(code)
        assert status == self._kind.status, status

    def collect(self) -> list[int]:
        self._ask(_COLLECT)
        return self._ask("")[1]

    def _ask(self, code: str) -> tuple[str, list[int]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        status, pids = json.loads(self._process.stdout.readline())
        return status, pids


@contextmanager
def in_notebook(kind: Kind, ranks: int) -> Iterator[Driver]:
    """Cells run in a kernel, as a front end sends them."""
    with running_kernel() as kernel:
        if not kind.is_stock:
            for code in ("%load_ext nbddp", f"%ddp start -n {ranks}"):
                cell = kernel.run(code, limit_s=_LIMIT_S)
                assert cell.status == "ok", cell.error
        yield _Notebook(kernel, kind)
        if not kind.is_stock:
            kernel.run("%ddp stop", limit_s=_LIMIT_S)


@contextmanager
def in_script(kind: Kind, ranks: int) -> Iterator[Driver]:
    """Cells run by `Pool.run` in a process without IPython."""
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT.replace("{ranks}", str(ranks))],
        env=dict(os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield _Script(process, kind)
