"""The TCP sockets of a Gloo group, by which its blocked operations are ended.

Runs in: the rank process; `shut` on the I/O thread while the main thread is blocked in C++.

No API of torch ends a Gloo operation that waits for a peer (gloo#388). A shutdown of the
*connected* sockets does, in about a millisecond. Gloo's listening socket must not be shut, because
its thread would end the process (std::terminate). A descriptor may have been reused for another
file since, so its inode is compared.
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
#: Timeout of a connection to this machine; the kernel drops one that a full queue cannot take.
_CONNECT_S = 0.2
_SETTLE_S = 0.05
_SETTLE_PAUSE_S = 0.001
#: Constants of Linux that Python has no names for.
_SO_ATTACH_FILTER, _BPF_RETURN = 26, 0x06
_FD_FOLDER = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"  # noqa: PTH112 - once


def tcp_sockets() -> set[Socket]:
    """Return all TCP sockets of this process."""
    open_sockets = set()
    for name in os.listdir(_FD_FOLDER):  # noqa: PTH208 - a third of the time of Path.iterdir
        fd = int(name)
        inode = _tcp_inode(fd)
        if inode is not None:
            open_sockets.add((fd, inode))
    return open_sockets


def _tcp_inode(fd: int) -> int | None:
    try:
        status = os.fstat(fd)
        if status.st_mode & 0o170000 != 0o140000:  # no socket
            return None
        with socket.socket(fileno=os.dup(fd)) as candidate:
            if candidate.type != socket.SOCK_STREAM or candidate.family not in (
                socket.AF_INET,
                socket.AF_INET6,
            ):
                return None
    except OSError:
        return None
    return status.st_ino


def shut(sockets: Iterable[Socket], how: int = socket.SHUT_RD) -> int:
    """End all communication over these sockets; returns how many were connected.

    For Gloo it is enough to end reads: it then closes the socket. If writes were ended as well, it
    would not wake a thread that is about to send (see `waits`).
    """
    count = 0
    for fd, inode in sockets:
        try:
            if os.fstat(fd).st_ino != inode:
                continue
            with socket.socket(fileno=os.dup(fd)) as connection:
                if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    continue
                connection.shutdown(how)
                count += 1
        except OSError:
            continue  # closed meanwhile, or not connected
    return count


def settle(sockets: Iterable[Socket], limit_s: float = _SETTLE_S) -> None:
    """Wait until no data is on its way over these sockets, at most ``limit_s`` seconds.

    Gloo reads a message in two steps: its header, then its data. A connection that ends between
    them wakes no thread that waits for the message (see `waits`). So each member waits here before
    it shuts its sockets.
    """
    until = time.monotonic() + limit_s
    kept = list(sockets)
    while any(_is_busy(fd, inode) for fd, inode in kept) and time.monotonic() < until:
        time.sleep(_SETTLE_PAUSE_S)


def _is_busy(fd: int, inode: int) -> bool:
    """Return whether a socket has unread data, or data that the other end has not acknowledged."""
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
    """Refuse new connections to a group whose members are all connected.

    Gloo listens as long as the group lives, on a port to which every user of the machine may
    connect, and keeps all connections. A filter on the listening socket makes the kernel drop new
    ones without notice to Gloo. If two of ``sockets`` listen, one may be the user's, and neither
    gets the filter.

    Source: socket(7), SO_ATTACH_FILTER; ``include/uapi/linux/filter.h`` of Linux.
    """
    if sys.platform != "linux":
        return
    with ExitStack() as opened:
        listening = []
        for fd, inode in sockets:
            with suppress(OSError):
                candidate = opened.enter_context(socket.socket(fileno=os.dup(fd)))
                is_same = os.fstat(candidate.fileno()).st_ino == inode
                if is_same and candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    listening.append(candidate)
        if len(listening) == 1:
            drop_all = ctypes.create_string_buffer(struct.pack("HBBI", _BPF_RETURN, 0, 0, 0))
            program = struct.pack("HP", 1, ctypes.addressof(drop_all))
            with suppress(OSError):  # a kernel without filters: the port stays open
                listening[0].setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def connect_for_members(sockets: Iterable[Socket], count: int) -> None:
    """End the creation of a group that waits for members to connect, with an error.

    Of two members one connects, and the other one waits until its listening socket has a connection
    with the number of their pair, which the first one sends: there is no socket to shut meanwhile.
    A member that has gone never connects, so this function does, with every number; the connection
    ends at once. Gloo keeps numbers of other pairs for later waits.

    Args:
        sockets: sockets of the group.
        count: at least the number of its members.

    Source: ``Pair::connect`` and ``Listener::handleEvents`` in ``gloo/transport/tcp``.
    """
    for fd, inode in sockets:
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as candidate:
            is_same = os.fstat(candidate.fileno()).st_ino == inode
            if not is_same or not candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                continue
            host, port = candidate.getsockname()[:2]
            for number in range(count):
                with socket.create_connection((host, port), timeout=_CONNECT_S) as dialed:
                    dialed.sendall(struct.pack("=q", number))


def connected_to(candidates: Iterable[Socket], port: int) -> list[Socket]:
    """Return the sockets whose other end has this port."""
    chosen = []
    for fd, inode in candidates:
        try:
            with socket.socket(fileno=os.dup(fd)) as opened:
                if opened.getpeername()[1] == port:
                    chosen.append((fd, inode))
        except OSError:
            continue
    return chosen
