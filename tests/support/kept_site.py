"""Scripts whose pools outlive them, in a folder of their own; nothing of them outlives the test."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from nbddp.settings import POOLS_DIR_ENV
from tests.support.polling import poll_until

#: Ends the wait for a script that hangs.
_LIMIT_S = 90.0


class Script:
    """A running script: what it prints, line by line."""

    def __init__(self, code: str, folder: Path, **env: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "TMPDIR": str(folder), **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
        )
        self.lines: list[str] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_line(self, beginning: str) -> str:
        """Wait for a line, and return what follows its beginning."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith(beginning):
                return line.removeprefix(beginning).strip()
        raise AssertionError("\n".join([f"no line {beginning!r}:", *self.lines]))

    def kill(self) -> None:
        """End it as a power cut does."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def finish(self) -> str:
        """Wait for its end, and return what it printed since the last line that was waited for."""
        text, _ = self._process.communicate(timeout=_LIMIT_S)
        assert self._process.returncode == 0, "\n".join([*self.lines, text])
        return text


_COUNTING = """
pool = nbddp.start(1, OPTIONS, keep="10min")
pool.run("x = rank + 10")
print("pool", pool.pool_id, flush=True)
pool.run('''
import time
for step in range(61):
    print("step", step)
    time.sleep(0.1)
x += 1''')
"""


class Scripts:
    """Scripts of the same user, each a notebook; all of them end with the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Script] = []

    def start(self, code: str) -> Script:
        self._started.append(Script(f"import nbddp, time\n{code}", self._folder))
        return self._started[-1]

    def start_counting(self, options: str) -> tuple[Script, str]:
        """Start a pool whose ranks 0 and 1 count to 60, each with an ``x`` of 11 or 12 at the end.

        Args:
            options: the arguments of `nbddp.start` after the number of ranks.

        Returns:
            The script, when the ranks have come to 3, and the name of the pool.
        """
        script = self.start(_COUNTING.replace("OPTIONS", options))
        pool_id = script.wait_line("pool ")
        script.wait_line("[0-1] step 3")
        return script, pool_id

    def close(self) -> None:
        for script in self._started:
            script.kill()


class KeptSite:
    """A temporary folder, and the scripts that work in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._scripts: list[Script] = []

    def start(self, code: str) -> Script:
        # Other programs of this user may have pools.
        own = {POOLS_DIR_ENV: str(self.folder)}
        self._scripts.append(Script(code, self.folder, **own))
        return self._scripts[-1]

    def processes(self) -> list[psutil.Process]:
        """Every living process that works in the folder, wherever it hangs in the tree."""
        mark = f"TMPDIR={self.folder}".encode()
        found = []
        for process in psutil.process_iter():
            try:
                is_ours = mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (OSError, psutil.NoSuchProcess):
                continue
        return found

    def wait_until_nothing_runs(self, limit_s: float = 15.0) -> None:
        poll_until(lambda: not self.processes(), limit_s)

    def pool_folders(self) -> list[Path]:
        return sorted(self.folder.glob("nbddp-*"))

    def close(self) -> None:
        for script in self._scripts:
            script.kill()
        for process in self.processes():
            process.kill()
        self.wait_until_nothing_runs()


@contextmanager
def kept_site() -> Iterator[KeptSite]:
    """A site in a folder with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="nbd-", dir="/tmp") as name:
        site = KeptSite(Path(name))
        try:
            yield site
        finally:
            site.close()
