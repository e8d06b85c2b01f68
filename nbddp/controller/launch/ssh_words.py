"""The command line of the user's own ssh.

Runs in: the notebook's process.
"""

from collections.abc import Sequence

#: Without the last two a connection that was cut when the notebook ended would never end.
_OPTIONS = (
    "BatchMode=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=15",
    "ServerAliveCountMax=4",
)


def ssh_words(host: str, command: str, forward: str = "", more: Sequence[str] = ()) -> list[str]:
    """Return the command that runs another one on a host.

    Args:
        host: as the user's ssh knows it.
        command: for the shell there.
        forward: ``FAR:HOST:PORT``: connections to ``FAR`` there come out at ``HOST:PORT``, from
            here; empty: none.
        more: words before the host.

    >>> ssh_words("a", "hostname")[-2:]
    ['a', 'hostname']
    """
    words = ["ssh", "-T", *(word for option in _OPTIONS for word in ("-o", option))]
    if forward:
        words += ["-o", "ExitOnForwardFailure=yes", "-R", forward]
    return [*words, *more, host, command]
