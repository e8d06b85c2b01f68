"""The signals by which an agent asks a rank for the stack of its main thread.

Runs in: agents and ranks.

`faulthandler` writes a stack in a C signal handler, at once. If the thread runs Python code just
then, a frame may be half built, and the process ends with SIGSEGV (seen in CPython 3.11.7, 3.12.1
and 3.13.0, in code that creates objects, reads properties or sorts). So a rank is first asked by a
signal whose handler is a Python function: CPython calls it between two instructions, where all
frames are whole. It is called at once if the thread runs Python code. If it is not called, the
thread is inside of C code, or blocked, its frames do not change, and `faulthandler` can read them.
"""

import signal
import sys
from typing import Final


def _python_signal() -> int:
    if sys.platform == "darwin":
        return signal.SIGINFO  # ignored by default; macOS has no real-time signals
    return signal.SIGRTMIN + 5  # glibc, and debuggers, use the first ones


#: Has a Python function write the stack. Few programs use real-time signals.
PYTHON: Final[int] = _python_signal()
#: Has `faulthandler` write the stack. Not SIGUSR1, which NCCL may use.
C: Final[int] = signal.SIGUSR2
