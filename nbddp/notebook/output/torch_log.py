"""Lines of torch's log, in which each rank has a time, a name, a port and a process of its own.

Runs in: the notebook's main thread. Pure: no clock, no I/O.

    [rank33]:[W1125 01:13:51.346214081 socket.cpp:207] [c10d] no name of [::1]:40231
    [rank41]:[W1125 01:13:51.350479356 socket.cpp:207] [c10d] no name of [::1]:40233
      --> [33,41] [W1125 01:13:51.346214081 socket.cpp:207] [c10d] no name of [::1]:40231,40233
"""

import re
from collections.abc import Sequence

from nbddp.notebook.render.html import with_all_numbers, without_numbers
from nbddp.wire.messages import Output

#: Sources: ``c10/util/Logging.cpp``, ``MessageLogger``; ``torch/_logging/_internal.py``.
_HEAD = re.compile(
    r"(?:\[rank\d+\]:)?(?P<head>(?P<kind>\[?[WEIV])\d{4} [\d:.]+ (?:\d+ )?(?P<place>[\w./]+:\d+\]))"
)
_STARTS = ("[rank", "[W", "[E", "[I", "[V", "W", "E", "I", "V")


def key_of(text: str) -> str | None:
    """Return what a line has in common with those of other ranks; None: torch's log has no such.

    >>> key_of("[W1124 09:12:33.123456789 socket.cpp:207] [c10d] no name of port 40231")
    '[W socket.cpp:207] [c…d] no name of port …'
    """
    match = _HEAD.match(text) if text.startswith(_STARTS) else None
    if match is None:
        return None
    return f"{match['kind']} {match['place']}{without_numbers(text[match.end() :])}"


def is_about_sockets(text: str) -> bool:
    """Return whether a line warns of a connection: torch goes on, or it reports an error later.

    >>> is_about_sockets("[rank1]:[W1124 09:12:33.12 socket.cpp:207] [c10d] no name of port 4")
    True
    """
    match = _HEAD.match(text) if text.startswith(_STARTS) else None
    return (
        match is not None
        and match["kind"].lstrip("[") in {"W", "I"}
        and match["place"].startswith("socket.cpp:")
    )


def without_sockets(output: Output) -> str:
    """The text of an output without lines that warn of a connection."""
    if output.stream != "stderr" or "socket.cpp" not in output.text:
        return output.text
    lines = output.text.splitlines(keepends=True)
    return "".join(line for line in lines if not is_about_sockets(line))


def merged(texts: Sequence[str]) -> str:
    """Return one line for lines with the same key: the first time, and all numbers.

    >>> line = "[rank{}]:[W1124 09:12:33.12 socket.cpp:207] [c10d] port 402{}"
    >>> merged([line.format(1, 31), line.format(2, 32)])
    '[W1124 09:12:33.12 socket.cpp:207] [c10d] port 40231,40232'
    """
    matches = [_HEAD.match(text) for text in texts]
    messages = [text[m.end() :] for text, m in zip(texts, matches, strict=True) if m is not None]
    return texts[0] if matches[0] is None else f"{matches[0]['head']}{with_all_numbers(messages)}"
