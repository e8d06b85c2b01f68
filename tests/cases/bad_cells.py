"""Cells that break something (exit, kill, close, flood), with the expected error: one table."""

import sys
from dataclasses import dataclass

import pytest

from nbddp.errors import CellError, RankExitedError


@dataclass(frozen=True)
class BadCell:
    """One bad cell."""

    name: str
    code: str
    error: type[CellError] | None  #: None: the cell must end well
    words: tuple[str, ...] = ()  #: that its error must hold
    #: Threads or tasks stay, which may do anything: no later hang can be proven on that pool.
    runs_on: bool = False


#: The process of the rank ends; the pool must say how, and a restart must repair it.
DEADLY = [
    BadCell(
        "segfault",
        "import ctypes; ctypes.string_at(0)",
        RankExitedError,
        ("SIGSEGV (signal 11)", "native code touched memory"),
    ),
    BadCell(
        "_exit",
        "import os; os._exit(3)",
        RankExitedError,
        ("exit code 3", ": `import os; os._exit(3)`"),
    ),
    BadCell(
        "sigkill",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        RankExitedError,
        ("SIGKILL (signal 9)", ": `import os, signal; os.kill("),
    ),
    BadCell(
        "sigterm",
        "import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
        RankExitedError,
        ("SIGTERM (signal 15)", ": `import os, signal, time; os.kill("),
    ),
    BadCell(
        "abort",
        "import os; os.abort()",
        RankExitedError,
        ("SIGABRT (signal 6)", ": `import os; os.abort()`"),
    ),
    BadCell(
        "c exit",
        "import ctypes; ctypes.CDLL(None).exit(5)",
        RankExitedError,
        ("exit code 5",),
    ),
]
if sys.version_info < (3, 12):  # later ones count calls of C, too, whatever the limit is
    DEADLY.append(
        BadCell(
            "c stack overflow",
            "import sys; sys.setrecursionlimit(10**9)\n"
            "def deeper(_=None): sorted([1], key=deeper)\n"
            "deeper()",
            RankExitedError,
            ("SIGSEGV (signal 11)",),
        )
    )

_MEMORY = """\
import resource
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (1 << 36, before[1]))
try:
    bytearray(1 << 37)
finally:
    resource.setrlimit(resource.RLIMIT_AS, before)"""

# Not as deep as Python allows: IPython needs seconds for a traceback of a thousand frames.
_RECURSION = """\
import sys
before = sys.getrecursionlimit()
def deeper(): deeper()
sys.setrecursionlimit(300)
try:
    deeper()
finally:
    sys.setrecursionlimit(before)"""

#: The rank stays; the next cell must work.
HARMLESS = [
    BadCell("recursion", _RECURSION, CellError, ("RecursionError",)),
    BadCell("out of memory", _MEMORY, CellError, ("MemoryError",)),
    BadCell("huge tensor", "torch.empty(1 << 60)", CellError, ("RuntimeError",)),
    BadCell("sys.exit(0)", "import sys; sys.exit(0)", None),
    BadCell("exit()", "exit()", None),
    BadCell("sys.exit(3)", "import sys; sys.exit(3)", CellError, ("SystemExit", "3")),
    BadCell("SystemExit", "raise SystemExit('no data')", CellError, ("SystemExit", "no data")),
    BadCell("own interrupt", "raise KeyboardInterrupt", CellError, ("KeyboardInterrupt",)),
    BadCell(
        "cancelled",
        "import asyncio\nraise asyncio.CancelledError('mine')",
        CellError,
        ("CancelledError",),
    ),
    BadCell("GeneratorExit", "raise GeneratorExit", CellError, ("GeneratorExit",)),
    BadCell(
        "exception without text",
        "class Mute(Exception):\n    def __str__(self): raise RuntimeError('no words')\nraise Mute",
        CellError,
        ("Mute",),
    ),
    BadCell("stdout is None", "import sys; sys.stdout = None", None),
    BadCell("stdout is a number", "import sys; sys.stdout = sys.stderr = 5", None),
    BadCell("stdout closed", "import sys; sys.stdout.close()", None),
    BadCell("fds closed", "import os; os.close(1); os.close(2)", None),
    BadCell(
        "fd 1 is a file",
        "import os, tempfile\nfile = tempfile.TemporaryFile()\nos.dup2(file.fileno(), 1)",
        None,
    ),
    BadCell(
        "signals ignored",
        "import signal\nfor number in (signal.SIGINT, signal.SIGTERM):\n"
        "    signal.signal(number, signal.SIG_IGN)",
        None,
    ),
    BadCell("fork without exit", "import os\nchild = os.fork()", None),
    BadCell(
        "fork and fail in the child",
        "import os\nif os.fork() == 0: raise ValueError('the child only')\nos.wait()[1]",
        None,
    ),
    BadCell(
        "thread without end",
        "import threading\nthreading.Thread(target=threading.Event().wait).start()",
        None,
        runs_on=True,
    ),
    BadCell(
        "atexit that hangs", "import atexit, time\natexit.register(time.sleep, 600)", None
    ),
    BadCell(
        "child in a session of its own",
        "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)",
        None,
    ),
    BadCell(
        "task without end",
        "import asyncio\nasync def forever():\n    while True: await asyncio.sleep(0.01)\n"
        "task = asyncio.ensure_future(forever())\nawait asyncio.sleep(0)",
        None,
        runs_on=True,
    ),
    BadCell("other folder, removed", "import os, tempfile\nfolder = tempfile.mkdtemp()\n"
            "os.chdir(folder); os.rmdir(folder)", None),
    BadCell("names deleted", "for name in 'rank', 'torch': globals().pop(name, None)", None),
    BadCell("builtins broken", "import builtins\nbuiltins.input = builtins.print = None", None),
    BadCell("environment cleared", "import os; os.environ.clear()", None),
    BadCell("many descriptors", "files = [open('/dev/null') for _ in range(900)]", None),
]  # fmt: skip


def parametrize(cells: list[BadCell]) -> pytest.MarkDecorator:
    """A test for each cell of a table."""
    return pytest.mark.parametrize("cell", cells, ids=lambda cell: cell.name)
