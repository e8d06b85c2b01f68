"""Writes the stack of this rank's main thread when the agent asks for it, and at a fatal signal.

Runs in: the rank process, main thread, in signal handlers. `nbddp.agent.stack_dumps` sends the
signals and reads the pipe; `nbddp.system.stack_signals` says why there are two.
"""

import faulthandler
import os
import signal
import types

from nbddp.system import stack_signals

#: As many frames as `faulthandler` writes.
_MAX_FRAMES = 100


def install(fd: int) -> None:
    """Write stacks to this descriptor from now on."""

    def write(signum: int, frame: types.FrameType | None) -> None:
        text = _stack(frame).encode("utf-8", "backslashreplace")
        try:
            while text:
                text = text[os.write(fd, text) :]
        except OSError:
            pass  # a cell has closed the descriptor: there is no stack then

    # Main thread only: in other threads the C handler would read frames of a thread that runs.
    faulthandler.enable(fd, all_threads=False)
    faulthandler.register(stack_signals.C, fd, all_threads=False, chain=False)
    signal.signal(stack_signals.PYTHON, write)
    # Calls that the system can continue are continued, as by the handler of `faulthandler`.
    signal.siginterrupt(stack_signals.PYTHON, False)


def _stack(frame: types.FrameType | None) -> str:
    """Return a stack as `faulthandler` writes it, the innermost frame first."""
    lines = ["Stack (most recent call first):"]
    while frame is not None:
        if len(lines) > _MAX_FRAMES:
            lines.append("  ...")
            break
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    return "\n".join(lines) + "\n"
