"""Which parts of a traceback of IPython are frames of libraries."""

import inspect
import json
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

import nbddp
from nbddp.rank.cells.library_frames import LibraryFrames, library_of


@pytest.mark.parametrize(
    ("file", "library"),
    [
        ("/venv/lib/python3.11/site-packages/torch/nn/functional.py", "torch"),
        ("/usr/lib/python3/dist-packages/six.py", "six"),
        (inspect.getfile(json), "json"),
        (f"{sysconfig.get_path('stdlib')}/contextlib.py", "contextlib"),
        (str(Path(nbddp.__file__).parent / "rank" / "main.py"), "nbddp"),
        (__file__, ""),
        ("/home/me/train.py", ""),
        ("<ipython-input-3-5f1c9e>", ""),
    ],
)
def test_the_library_of_a_file(file: str, library: str):
    assert library_of(file) == library


class Writer(SimpleNamespace):
    """As IPython's writer of tracebacks."""

    mode = "Context"

    def format_record(self, frame: SimpleNamespace) -> str:
        return f"File {frame.filename}"


def libraries(*files: str, mode: str = "Context") -> tuple[str, ...]:
    writer = Writer(mode=mode)
    frames = LibraryFrames(writer)
    lines = [writer.format_record(SimpleNamespace(filename=file)) for file in files]
    found = frames.take(["Traceback", *lines, "ValueError"])
    assert frames.take(lines) == ()  # they are forgotten
    return found


def test_frames_of_the_user_headings_and_messages_have_no_library():
    assert libraries("train.py", "/x/site-packages/torch/a.py") == ("", "", "torch", "")


def test_nothing_is_folded_without_a_frame_of_the_user_or_of_a_library():
    assert libraries("/x/site-packages/torch/a.py") == ()
    assert libraries("train.py") == ()
    assert libraries() == ()


def test_a_verbose_traceback_is_not_folded():
    assert libraries("train.py", "/x/site-packages/torch/a.py", mode="Verbose") == ()
