"""Lets an agent outlive the connection that has started it, such as that of ssh.

Runs in: the agent process on another machine, its main thread, before anything else.

    ssh <-- the process that it has started, which only waits    the agent, in a session of its own
                 '-- ends with the agent, or with its standard input      '-- goes on

The connection stays while the agent lives and the notebook has it. So an engine notices the end of
the agent at once, and no connection is left when the notebook has gone.
"""

import os
import select
import signal
from contextlib import suppress
from typing import NoReturn

_INPUT, _OUTPUT, _ERRORS = 0, 1, 2
_READ_BYTES = 65536
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def enter() -> None:
    """Go on in a child with a session of its own; this process ends as described above."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child:
        os.close(write_fd)
        _wait(child, read_fd)
    os.setsid()
    os.dup2(write_fd, _OUTPUT)
    os.dup2(write_fd, _ERRORS)
    os.close(read_fd)
    os.close(write_fd)


def _wait(child: int, outputs_fd: int) -> NoReturn:
    """Pass on what the agent writes, until it ends or the standard input does."""
    for number in _PASSED_ON:
        signal.signal(number, lambda which, _: os.kill(child, which))
    poller = select.poll()
    pidfd = os.pidfd_open(child)
    for fd in (_INPUT, outputs_fd, pidfd):
        poller.register(fd, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poller.poll()}
        if outputs_fd in ready and not _pass_on(outputs_fd):
            poller.unregister(outputs_fd)  # no process writes any longer
        if outputs_fd in ready:
            continue
        if pidfd in ready:
            _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)  # as a shell does
        if _INPUT in ready and not os.read(_INPUT, _READ_BYTES):
            os._exit(0)


def _pass_on(outputs_fd: int) -> bool:
    text = os.read(outputs_fd, _READ_BYTES)
    with suppress(OSError):  # nobody listens
        os.write(_ERRORS, text)
    return bool(text)
