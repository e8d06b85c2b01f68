"""The command line of the user's own ssh.

Runs in: the notebook's process.
"""

from collections.abc import Sequence

_OPTIONS = ("BatchMode=yes", "ConnectTimeout=10")
#: Seconds between questions, and how many may stay without an answer. Without them a connection
#: that was cut when the notebook ended would never end.
SILENCE = (15, 4)


def ssh_words(
    host: str,
    command: str,
    forward: str = "",
    more: Sequence[str] = (),
    silence: tuple[int, int] = SILENCE,
) -> list[str]:
    """Return the command that runs another one on a host.

    Args:
        host: as the user's ssh knows it.
        command: for the shell there.
        forward: ``FAR:HOST:PORT``: connections to ``FAR`` there come out at ``HOST:PORT``, from
            here; empty: none.
        more: words before the host.
        silence: seconds between the questions of ssh to the host, and how many may stay
            unanswered.

    >>> ssh_words("a", "hostname")[-2:]
    ['a', 'hostname']
    """
    interval, count = silence
    options = (*_OPTIONS, f"ServerAliveInterval={interval}", f"ServerAliveCountMax={count}")
    words = ["ssh", "-T", *(word for option in options for word in ("-o", option))]
    if forward:
        words += ["-o", "ExitOnForwardFailure=yes", "-R", forward]
    return [*words, *more, host, command]
