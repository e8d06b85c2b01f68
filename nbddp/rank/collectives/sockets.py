"""The TCP sockets behind a Gloo group, and how its blocked operations are ended.

Runs in: the rank process; `shut` on the I/O thread while the main thread is blocked in C++.

No API of torch ends a Gloo operation that waits for a peer (gloo#388). A shutdown of the
*connected* sockets does, in about a millisecond. Gloo's listening socket must be left alone: its
thread would end the process (std::terminate). A descriptor may have been used again for something
else since, so its inode is compared.
"""

import os
import socket
from collections.abc import Iterable

#: A descriptor and the inode behind it.
Socket = tuple[int, int]
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
    could be written either, it would forget to wake who is just about to send (see `unwoken`).
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
