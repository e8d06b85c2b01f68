"""The TCP sockets behind a Gloo group, and how its blocked operations are ended.

Runs in: the rank process; `shut` on the I/O thread while the main thread is blocked in C++.

No API of torch ends a Gloo operation that waits for a peer (gloo#388). A shutdown of the
*connected* sockets does, in about a millisecond. Gloo's listening socket must be left alone: its
thread would end the process (std::terminate). A descriptor may have been used again for something
else since, so its inode is compared.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys
import termios
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress

#: A descriptor and the inode behind it.
Socket = tuple[int, int]
#: To this machine; a kernel drops what a full queue cannot take.
_DIAL_S = 0.2
_SETTLE_S = 0.05
_SETTLE_PAUSE_S = 0.001
#: Of Linux; Python has no names for them.
_SO_ATTACH_FILTER, _BPF_RETURN = 26, 0x06
_FD_FOLDER = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"  # noqa: PTH112 - once


def tcp_sockets() -> set[Socket]:
    """All TCP sockets of this process."""
    found = set()
    for name in os.listdir(_FD_FOLDER):  # noqa: PTH208 - a third of the time of Path.iterdir
        fd = int(name)
        inode = _tcp_inode(fd)
        if inode is not None:
            found.add((fd, inode))
    return found


def _tcp_inode(fd: int) -> int | None:
    try:
        status = os.fstat(fd)
        if status.st_mode & 0o170000 != 0o140000:  # no socket
            return None
        with socket.socket(fileno=os.dup(fd)) as found:
            if found.type != socket.SOCK_STREAM or found.family not in (
                socket.AF_INET,
                socket.AF_INET6,
            ):
                return None
    except OSError:
        return None
    return status.st_ino


def shut(sockets: Iterable[Socket], how: int = socket.SHUT_RD) -> int:
    """End all communication over these; gives how many were connected.

    For Gloo it is enough that nothing more can be read: it then closes the socket. If nothing
    could be written either, it would forget to wake who is just about to send (see `waits`).
    """
    count = 0
    for fd, inode in sockets:
        try:
            if os.fstat(fd).st_ino != inode:
                continue
            with socket.socket(fileno=os.dup(fd)) as found:
                if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    continue
                found.shutdown(how)
                count += 1
        except OSError:
            continue  # closed meanwhile, or not connected
    return count


def settle(sockets: Iterable[Socket], limit_s: float = _SETTLE_S) -> None:
    """Wait until no data is on its way over these, at most ``limit_s`` seconds.

    Gloo reads a message in two steps, first what it is and then its data. If the connection ends
    between them, it wakes nobody who waits for that message (see `waits`). All members wait so,
    before the first one shuts its sockets.
    """
    until = time.monotonic() + limit_s
    kept = list(sockets)
    while any(_is_busy(fd, inode) for fd, inode in kept) and time.monotonic() < until:
        time.sleep(_SETTLE_PAUSE_S)


def _is_busy(fd: int, inode: int) -> bool:
    """Whether a socket has data that was not read, or that the other end has not got."""
    try:
        if os.fstat(fd).st_ino != inode:
            return False
        waiting = bytearray(4)
        for request in (termios.FIONREAD, termios.TIOCOUTQ):
            fcntl.ioctl(fd, request, waiting)
            if any(waiting):
                return True
    except OSError:  # closed meanwhile, or it listens
        pass
    return False


def refuse_new(sockets: Iterable[Socket]) -> None:
    """From now on nobody else connects to a group whose members are all connected.

    Gloo listens as long as the group lives, on a port that every user of the machine may dial, and
    keeps whatever comes. A filter on the listening socket has the kernel drop what dials it, and
    Gloo sees nothing. Of two listening ones among ``sockets`` one may be the user's: none is
    closed.

    Source: socket(7), SO_ATTACH_FILTER; ``include/uapi/linux/filter.h`` of Linux.
    """
    if sys.platform != "linux":
        return
    with ExitStack() as opened:
        listening = []
        for fd, inode in sockets:
            with suppress(OSError):
                found = opened.enter_context(socket.socket(fileno=os.dup(fd)))
                is_same = os.fstat(found.fileno()).st_ino == inode
                if is_same and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    listening.append(found)
        if len(listening) == 1:
            keep_nothing = ctypes.create_string_buffer(struct.pack("HBBI", _BPF_RETURN, 0, 0, 0))
            program = struct.pack("HP", 1, ctypes.addressof(keep_nothing))
            with suppress(OSError):  # a kernel without it: the port stays open
                listening[0].setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def dial_in_place_of_members(sockets: Iterable[Socket], count: int) -> None:
    """Let a group that is being made go on, to an error, where it waits for members to dial.

    Of two members one dials, and the other one waits until its listening socket has a connection
    with the number of their pair, which the caller sends: there is no socket to be shut meanwhile.
    A member that has gone never dials, so this does, with every number; the connection ends at
    once. Numbers of other pairs are kept by Gloo, for when they are waited for.

    Args:
        sockets: of the group.
        count: at least as many as it has members.

    Source: ``Pair::connect`` and ``Listener::handleEvents`` in ``gloo/transport/tcp``.
    """
    for fd, inode in sockets:
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as found:
            is_same = os.fstat(found.fileno()).st_ino == inode
            if not is_same or not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                continue
            host, port = found.getsockname()[:2]
            for number in range(count):
                with socket.create_connection((host, port), timeout=_DIAL_S) as dialed:
                    dialed.sendall(struct.pack("=q", number))


def connected_to(found: Iterable[Socket], port: int) -> list[Socket]:
    """Those whose other end is this port."""
    chosen = []
    for fd, inode in found:
        try:
            with socket.socket(fileno=os.dup(fd)) as opened:
                if opened.getpeername()[1] == port:
                    chosen.append((fd, inode))
        except OSError:
            continue
    return chosen
