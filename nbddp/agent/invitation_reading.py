"""Reads the invitation of a pool: from a file, from standard input, from a variable.

Runs in: the agent process on another machine, its main thread.
"""

import os
import select
import stat
import sys
from pathlib import Path

import msgspec

from nbddp.errors import AgentJoinError
from nbddp.wire.invitation import Invitation

#: The source of the invitation that is a line on standard input; see `ends_with_starter`.
STDIN = "-"
#: The source that is the variable `CONNECT_ENV`.
ENVIRONMENT = "env"
CONNECT_ENV = "NBDDP_CONNECT"
_SKIPPED_BYTES = 4096


def read_invitation(source: str) -> Invitation:
    """Read the invitation, and leave no copy of it for the processes that follow.

    Args:
        source: path of a file, or `STDIN`, or `ENVIRONMENT`.

    Raises:
        AgentJoinError: there is none; the message says what is wrong.
    """
    try:
        if source == STDIN:
            text = _first_line(sys.stdin.fileno())
        elif source == ENVIRONMENT:
            text = os.environ.pop(CONNECT_ENV).encode()
        else:
            text = Path(source).read_bytes()
        return Invitation.parse(text)
    except KeyError:
        raise AgentJoinError(
            f"--connect env: the variable {CONNECT_ENV} is not set. Next: {_next_step(source)}"
        ) from None
    except OSError as error:
        raise AgentJoinError(
            f"--connect {source}: {error.strerror}. Next: the path that %ddp listen has printed; "
            "the file must be visible on this machine"
        ) from None
    except msgspec.MsgspecError:
        raise AgentJoinError(
            f"--connect {source}: this is no invitation of %ddp listen"
            f"{'' if text else '; it is empty'}. Next: {_next_step(source)}"
        ) from None


def ends_with_starter(fd: int) -> bool:
    """Whether the end of an input tells that the program that holds its other end has ended.

    Engines give the agent a pipe. The end of a file is where its text ends.
    """
    return not stat.S_ISREG(os.fstat(fd).st_mode)


def has_starter_ended(lifeline_fd: int) -> bool:
    """Whether the end of such an input is reached; False also for -1: there is none.

    Text that the starter writes after the invitation is skipped.
    """
    if lifeline_fd < 0:
        return False
    while select.select([lifeline_fd], [], [], 0.0)[0]:
        if not os.read(lifeline_fd, _SKIPPED_BYTES):
            return True
    return False


def take_lifeline(fd: int) -> int:
    """Put an empty input in the place of the one that has given the invitation.

    So ranks and their children do not get a file with the secrets of the pool.

    Args:
        fd: the input.

    Returns:
        A descriptor whose end says that the engine's client has ended; -1: the input was none.
    """
    lifeline_fd = os.dup(fd) if ends_with_starter(fd) else -1  # not inheritable
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, fd)
    os.close(empty)
    return lifeline_fd


def _next_step(source: str) -> str:
    file = "the file whose path %ddp listen has printed"
    if source == STDIN:
        return f"give {file} on standard input: nbddp agent --connect - < FILE"
    if source == ENVIRONMENT:
        return f'{CONNECT_ENV}="$(cat FILE)", with {file}'
    return f"{file}, as it is"


def _first_line(fd: int) -> bytes:
    """Read one line and not a byte more."""
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(fd, 1)):
        line += byte
    return bytes(line)
