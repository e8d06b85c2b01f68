"""A pretend ssh, which runs the command on this machine, and other programs of a line or two."""

import sys
from pathlib import Path

#: The words of the real one end with `-R FAR:HOST:PORT LOGIN COMMAND`; sshd makes FAR.
PRETEND_SSH = f"""case "$*" in *"-O cancel"*) exit 0;; esac
for word; do
    case "$word" in *.sock:127.0.0.1:*) far=${{word%%:*}};; esac
done
{sys.executable} -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' $far
exec sh -c "$word"
"""


def write_command(path: Path, lines: str) -> None:
    """Write a program of the shell."""
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
