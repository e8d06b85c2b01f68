"""The line of the user's code that a rank notes now and then, for the case that it dies."""

import sys
import sysconfig
import threading
import types
from pathlib import Path
from typing import Any

from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.rank.user_code_context import Callbacks
from nbddp.wire.flight_recorder.reader import Reader
from nbddp.wire.flight_recorder.writer import NodeMemory

CELL = "cell-7.py"


def _frame(file: str) -> types.FrameType:
    """A frame of code in this file, which only a thread has called."""
    frames: list[types.FrameType] = []
    names: dict[str, Any] = {"frames": frames, "sys": sys}
    exec(compile("def note(): frames.append(sys._getframe())", file, "exec"), names)
    thread = threading.Thread(target=names["note"])
    thread.start()
    thread.join()
    return frames[0]


def test_a_library_that_formats_a_traceback_is_not_noted():
    memory = NodeMemory.create(1)
    recorder = Recorder(memory, 0, 0, lambda file: 7 * (file == CELL), (), callbacks=Callbacks())
    reader = recorder._reader
    assert isinstance(reader, Reader)
    library = _frame(str(Path(sysconfig.get_path("purelib"), "pygments", "lexer.py")))
    recorder.note_line(library)
    assert _cell_of_last(reader) is None
    recorder.note_line(_frame(CELL))
    recorder.note_line(library)
    assert _cell_of_last(reader) == 7


def _cell_of_last(reader: Reader) -> int | None:
    return None if reader.last_line is None else reader.last_line[0].cell
