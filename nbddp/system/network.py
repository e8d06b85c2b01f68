"""Addresses and interfaces of this machine, and connections that only ask whether one is possible.

Runs in: the notebook's process, agents, ranks. IPv4 only.
"""

import errno
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress

#: Linux, ``linux/sockios.h``: the address of an interface.
_SIOCGIFADDR = 0x8915
_LOOPBACK = "127."
#: A probe of a port waits this long for an answer.
_PROBE_S = 0.3
#: What `first_reachable` says of an address from which nothing comes back.
NO_ANSWER = "no answer"
#: What it says of one at which nothing listens.
REFUSED = os.strerror(errno.ECONNREFUSED)
#: An address that is routed nowhere (RFC 5737): asks for the default route.
_ELSEWHERE = "192.0.2.1"


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of a ZeroMQ address.

    >>> split_address("tcp://10.0.0.1:5555")
    ('10.0.0.1', 5555)
    """
    host, _, port = address.rpartition("//")[2].rpartition(":")
    return host, int(port)


def interfaces() -> list[tuple[str, str]]:
    """Return ``(name, address)`` of each interface with an address; the loopback comes last.

    Empty on systems other than Linux.
    """
    if not sys.platform.startswith("linux"):
        return []
    named_addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no address
                request = struct.pack("256s", name[:15].encode())
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                named_addresses.append((name, socket.inet_ntoa(answer[20:24])))
    return sorted(named_addresses, key=lambda item: item[1].startswith(_LOOPBACK))


def address_towards(host: str) -> str:
    """Return the address of this machine that it uses towards ``host``; nothing is sent.

    Raises:
        OSError: the name cannot be resolved, or no route leads there.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


def own_address() -> str:
    """Return the address at which other machines most likely reach this one.

    That is the address of the default route, else of the first interface that is not the loopback.
    """
    with suppress(OSError):
        return address_towards(_ELSEWHERE)
    return next((address for _, address in interfaces()), "127.0.0.1")


def interface_towards(host: str) -> str:
    """Return the name of the interface that leads to ``host``; empty: none is known."""
    with suppress(OSError):
        own = address_towards(host)
        return next((name for name, address in interfaces() if address == own), "")
    return ""


def is_loopback(host: str) -> bool:
    """Return whether an address names this machine itself.

    >>> is_loopback("127.0.1.1"), is_loopback("10.0.0.1")
    (True, False)
    """
    return host.startswith(_LOOPBACK) or host in ("localhost", "::1")


def refuses_connections(host: str, port: int) -> bool:
    """Return whether that machine answers, and says that nothing listens on the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        return probe.connect_ex((host, port)) == errno.ECONNREFUSED


def first_reachable(
    addresses: Iterable[str], timeout_s: float
) -> tuple[str, str, list[tuple[str, str]]]:
    """Connect to each of these addresses in turn, until one answers.

    Args:
        addresses: of ZeroMQ: ``tcp://10.0.0.1:5555``.
        timeout_s: for each of them.

    Returns:
        The address that answered and the address of this machine towards it, both empty if none
        did; and the others that were tried before, each with the reason.
    """
    failures: list[tuple[str, str]] = []
    for address in addresses:
        try:
            with socket.create_connection(split_address(address), timeout_s) as connection:
                return address, str(connection.getsockname()[0]), failures
        except OSError as error:
            reason = NO_ANSWER if isinstance(error, TimeoutError) else error.strerror
            failures.append((address, reason or str(error)))
    return "", "", failures
