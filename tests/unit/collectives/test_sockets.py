"""The sockets of Gloo groups are shut when their data was read."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from nbddp.rank.collectives.gloo import sockets


@contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as mine,
        server.accept()[0] as other,
    ):
        yield mine, other


def held(ends: list[socket.socket]) -> list[sockets.Socket]:
    return [(end.fileno(), os.fstat(end.fileno()).st_ino) for end in ends]


def test_sockets_are_quiet_when_what_was_sent_is_read():
    with connection() as (mine, other):
        mine.sendall(b"half")
        waiting = threading.Thread(target=sockets.settle, args=(held([mine, other]), 60.0))
        waiting.start()
        assert waiting.is_alive()
        assert other.recv(4) == b"half"
        waiting.join(30)
        assert not waiting.is_alive()


def test_the_wait_for_unread_data_is_bounded():
    with connection() as (mine, other):
        mine.sendall(b"never read")
        sockets.settle(held([other]), 0.01)
        sockets.shut(held([other]))
        assert other.recv(100) == b"never read"  # data that came before can still be read
