"""A program that starts agents and lives as long as they do: ``ssh``, ``srun``.

Runs in: the notebook's process. The invitation is a line on its standard input, so it is in no
command line, file or environment. The input ends with the notebook, which ends the agents.
"""

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress

from nbddp.controller.launch.relay_messages import RELAY_SAYS
from nbddp.errors import PoolStartError
from nbddp.settings import AGENT_SAYS
from nbddp.wire.invitation import Invitation

_LOG_BYTES = 4000
_LAST_LINES = 8
#: A warning of torch in a rank, whose output is that of its agent: ``[W1127 09:12:33.1 a.cpp:7]``.
_TORCH_WARNS = re.compile(r"(\[rank\d+\]:)?\[?[WI]\d{4} \d\d:\d\d")
_ASK_S = 5.0
#: For a program to end after SIGTERM.
_LEAST_S = 1.0


def ask(words: Sequence[str]) -> str:
    """Return the output of a command that ends soon; empty: it cannot be run, or takes too long."""
    try:
        return subprocess.run(
            words, capture_output=True, text=True, timeout=_ASK_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def last_words(output: bytes) -> str:
    """Return the last lines of an output: `` and said: ...``, or that there are none."""
    lines = output[-_LOG_BYTES:].decode("utf-8", "replace").strip().splitlines()
    # What agents and the relay say while all is well is no reason.
    marks = (AGENT_SAYS, RELAY_SAYS)
    said = [line for line in lines if not line.startswith(marks)]
    reasons = [line for line in said if not _TORCH_WARNS.match(line)]
    text = "\n".join((reasons or said)[-_LAST_LINES:])
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1]  # the sentence around it has a full stop of its own
    return f" and said: {text}" if text else ", and said nothing"


class EngineProcess:
    """The running program.

    Args:
        words: of its command line.
        invitation: for the agents; None: it starts none.
        env: its environment; None: that of this process.

    Raises:
        PoolStartError: the program cannot be run.
    """

    def __init__(
        self,
        words: Sequence[str],
        invitation: Invitation | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the program
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=env,
            )
        except OSError as error:
            self._log.close()
            raise PoolStartError(
                f"the pool did not start: {words[0]} cannot be run ({error.strerror}). Next: "
                "install it, or use another --launcher"
            ) from None
        self._input = self._process.stdin
        if invitation is not None:
            self.say(invitation.text())

    def say(self, line: str) -> None:
        """Write a line to its standard input."""
        if self._input is not None:
            with suppress(OSError):  # it has ended; `end` says why
                self._input.write(line.encode() + b"\n")
                self._input.flush()

    def end(self) -> str:
        """Return ``ended with exit code 255 and said: ...``, its last lines; empty: it runs."""
        if self._process.poll() is None:
            return ""
        since = max(0, os.fstat(self._log.fileno()).st_size - _LOG_BYTES)
        said = last_words(self._output(since))
        return f"ended with exit code {self._process.returncode}{said}"

    @property
    def exit_code(self) -> int | None:
        """Its exit code, if it has ended and `end` was called."""
        return self._process.returncode

    def lines(self, since: int) -> tuple[list[str], int]:
        """Return the lines of its output that end with a line break, and the offset behind them.

        Args:
            since: the offset at which to begin: 0, or one that was returned.
        """
        output = self._output(since)
        whole = output[: output.rfind(b"\n") + 1]
        return whole.decode("utf-8", "replace").split("\n")[:-1], since + len(whole)

    def _output(self, since: int) -> bytes:
        """Return its output from an offset on.

        The program, or a child of it, goes on to write: its place in the file has to stay.
        """
        log = self._log.fileno()
        return os.pread(log, os.fstat(log).st_size - since, since)

    def close_input(self) -> None:
        """End the standard input, and with it the agents."""
        if self._input is not None:
            with suppress(OSError):
                self._input.close()

    def stop(self, patience_s: float) -> None:
        """End the program: by the end of its input, then by SIGTERM, then by SIGKILL.

        Args:
            patience_s: seconds to wait before each of them; 0: begin with SIGTERM.
        """
        self.close_input()
        for number in (0, signal.SIGTERM, signal.SIGKILL):
            if number and self._process.poll() is None:
                self._process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                limit_s = patience_s if number == 0 else max(patience_s, _LEAST_S)
                self._process.wait(None if number == signal.SIGKILL else limit_s)
                break
        self._log.close()
