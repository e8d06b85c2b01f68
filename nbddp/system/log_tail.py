"""The end of a log file.

Runs in: the notebook's process, agents.
"""

from pathlib import Path


def read_tail(path: Path, max_bytes: int) -> tuple[str, int]:
    """Return the end of a file as text, from the begin of a line, and the size of the whole file.

    Args:
        path: of the file.
        max_bytes: not more than this is read.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        begin = file.seek(max(0, size - max_bytes))
        data = file.read(max_bytes)
    if begin:
        _, separator, rest = data.partition(b"\n")
        data = rest if separator else data
    return data.decode("utf-8", "replace"), size
