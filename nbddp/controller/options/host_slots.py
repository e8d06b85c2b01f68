"""Hosts as other tools write them: in a file, and with slots: the ranks on each.

    --hosts a:4,b:4      --hostfile FILE with lines such as: a slots=4

Runs in: the notebook's process, or that of the command ``nbddp``.
"""

import argparse
import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbddp.controller.options import line_option
from nbddp.controller.options.line_option import LineOption
from nbddp.errors import BadOptionError

_LEGAL = "legal: on each line a name, or a name and its ranks, as in `n1 slots=4` or `n1:4`"
_HOST_WITH_SLOTS = re.compile(r"(?P<host>[^:]+):(?P<slots>\d+)")
_SLOTS = re.compile(r"slots=(?P<slots>\d+)")
#: Open MPI has it behind the slots; the ranks of a pool are never more than those.
_MAX_SLOTS = re.compile(r"max[-_]slots=\d+")


def hosts_of_file(path: str) -> tuple[str, ...]:
    """Read a file with the name of a host on each line; ``#`` begins a comment.

    Returns:
        The names, ``n1:4`` for a host with slots.

    Raises:
        argparse.ArgumentTypeError: it cannot be read, or a line has more than that.
    """
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be read ({error})") from None
    hosts = []
    for number, line in enumerate(lines, 1):
        words = [w for w in line.partition("#")[0].split() if not _MAX_SLOTS.fullmatch(w)]
        slots = _SLOTS.fullmatch(words[1]) if len(words) > 1 else None
        is_wrong = len(words) > 2 or (len(words) == 2 and slots is None)
        if is_wrong or (slots and ":" in words[0]):  # slots twice, or an address with colons
            raise argparse.ArgumentTypeError(
                f"line {number} of {path} is {line.strip()!r}; {_LEGAL}"
            )
        hosts += [f"{words[0]}:{slots['slots']}"] if slots else words
    if not hosts:
        raise argparse.ArgumentTypeError(f"{path} names no host; {_LEGAL}")
    return tuple(hosts)


#: Gives the option ``hosts``.
HOSTFILE = LineOption(
    ("--hostfile",),
    metavar="FILE",
    read=hosts_of_file,
    write=line_option.write_names,
    help="the same as --hosts, from a file with one name on each line",
)


def named_hosts(hosts: Any) -> tuple[str, ...]:
    """Return hosts as names; a text is read like that of the command line.

    Raises:
        BadOptionError: they are neither a text nor a sequence of texts.
    """
    try:
        names = line_option.names(hosts) if isinstance(hosts, str) else tuple(hosts)
    except (argparse.ArgumentTypeError, TypeError):
        names = (None,)
    if not all(isinstance(host, str) and host for host in names):
        raise BadOptionError(f'hosts is {hosts!r}; legal: names, such as ["a", "b"] or "a,b"')
    return names


def without_slots(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with ``nproc_per_node`` in the place of the slots of hosts.

    Args:
        given: options by name, from one place: a line, or a table of a cluster.

    Raises:
        BadOptionError: the slots differ, or are not those of ``-n``.
    """
    if given.get("hosts") is None:
        return dict(given)
    hosts = named_hosts(given["hosts"])
    given = {**given, "hosts": hosts}
    for host in hosts:
        if problem := _problem(host):
            raise BadOptionError(f"--hosts {','.join(hosts)}: {problem}")
    read = [_HOST_WITH_SLOTS.fullmatch(host) for host in hosts]
    if not any(read):
        return dict(given)
    names = [host if each is None else each["host"] for host, each in zip(hosts, read, strict=True)]
    slots = {None if each is None else int(each["slots"]) for each in read}
    written = f"--hosts {','.join(hosts)}"
    if len(slots) > 1:
        fewest = min(number or 1 for number in slots)
        raise BadOptionError(
            f"{written}: all nodes of a pool have the same number of ranks; legal: one number "
            f"behind all hosts, or none and -n, such as --hosts {','.join(names)} -n {fewest}"
        )
    (ranks,) = slots
    asked = given.get("nproc_per_node")
    if asked not in (None, ranks):
        raise BadOptionError(
            f"{written} means {ranks} {'rank' if ranks == 1 else 'ranks'} on each node, and -n is "
            f"{asked}. Next: leave out one of the two"
        )
    return {**given, "hosts": tuple(names), "nproc_per_node": ranks}


def name_problem(host: str) -> str:
    """Say why ssh must not get this as the name of a host; empty: it may."""
    if host.startswith("-"):
        return (
            f"{host!r} begins with a dash, and ssh would take it for an option; legal: names of "
            "hosts. Next: options of ssh belong in ~/.ssh/config"
        )
    if host.split() != [host]:
        return f"{host!r} has a space in it"
    return ""


def _problem(host: str) -> str:
    """Say what is wrong with a host; empty: nothing is."""
    if problem := name_problem(host):
        words = host.split()
        legal = f"; legal: {','.join(words)}, a comma between two names"
        return f"{problem}{legal if words != [host] else ''}"
    name, _, slots = host.partition(":")
    if ":" not in host or _is_ipv6(host):
        return ""
    if not name:
        return f"no name stands before the colon of {host!r}; legal: HOST{host}, or HOST alone"
    if ":" in slots:
        return f"{host!r} has two colons and is no IPv6 address; legal: {name}:4, or {name} alone"
    if not slots.isdecimal():
        return (
            f"behind the colon stands the number of ranks, and {slots!r} is no number; legal: "
            f"{name}:4, or {name} alone"
        )
    return ""


def _is_ipv6(host: str) -> bool:
    """Whether a host, perhaps with a user, is an address such as ``fe80::1%eth0``."""
    try:
        ipaddress.IPv6Address(host.rpartition("@")[2].strip("[]"))
    except ValueError:
        return False
    return True
