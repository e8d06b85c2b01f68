"""Says which parts of a traceback are frames of libraries, so that the notebook can fold them.

Runs in: the rank process, main thread.
"""

import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbddp

_OWN_FOLDER = f"{Path(nbddp.__file__).parent.parent}/"
_PACKAGE_FOLDERS = ("/site-packages/", "/dist-packages/")
_STANDARD_FOLDER = f"{sysconfig.get_path('stdlib')}/"
#: Of IPython's modes; ``%xmode Verbose`` asks for every frame.
_FOLDED_MODE = "Context"


class LibraryFrames:
    """The libraries of the frames that IPython has written.

    Args:
        writer: IPython's writer of tracebacks; each frame is noted when it is written.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._format = writer.format_record
        self._library_by_text: dict[str, str] = {}
        writer.format_record = self._noted

    def _noted(self, frame: Any) -> str:
        text = str(self._format(frame))
        self._library_by_text[text] = library_of(str(frame.filename))
        return text

    def take(self, lines: Sequence[str]) -> tuple[str, ...]:
        """Return the library of each part of a traceback, and forget the frames.

        Args:
            lines: the parts: headings, frames, messages.

        Returns:
            Empty if nothing is to be folded: the user asked for all frames, or has no frame. A part
            that is no frame, or a frame of the user, has an empty name.
        """
        library_by_text, self._library_by_text = self._library_by_text, {}
        if self._writer.mode != _FOLDED_MODE or "" not in library_by_text.values():
            return ()
        libraries = tuple(library_by_text.get(line, "") for line in lines)
        return libraries if any(libraries) else ()


def library_of(file: str) -> str:
    """Return ``torch`` for a file of torch, ``json`` for one of Python's; empty: the user's.

    >>> library_of("/venv/lib/python3.11/site-packages/torch/nn/functional.py")
    'torch'
    """
    for folder in _PACKAGE_FOLDERS:
        if folder in file:
            return _top_level(file.rpartition(folder)[2])
    if file.startswith(f"{_OWN_FOLDER}nbddp/"):
        return "nbddp"
    return _top_level(file[len(_STANDARD_FOLDER) :]) if file.startswith(_STANDARD_FOLDER) else ""


def _top_level(path: str) -> str:
    return path.partition("/")[0].removesuffix(".py")
