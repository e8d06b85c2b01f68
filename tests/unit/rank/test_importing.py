"""Imports for which an interrupt waits."""

import importlib
import sys
import time
from pathlib import Path
from types import FrameType

import pytest

from nbddp.rank.cells import import_guard

_MODULE = "import sys\nframe = sys._getframe()\n"


def _frame_of(module: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> FrameType:
    (folder / f"{module}.py").write_text(_MODULE)
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    found = importlib.import_module(module)
    del sys.modules[module]
    frame = found.frame
    assert isinstance(frame, FrameType)
    return frame


def test_only_imports_of_libraries_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    frame = _frame_of("nbddp_test_module", tmp_path, monkeypatch)
    assert not import_guard.is_in_library_import(frame)
    monkeypatch.setattr(import_guard, "_libraries", (str(tmp_path),))
    assert import_guard.is_in_library_import(frame)
    assert not import_guard.is_in_library_import(sys._getframe())
    assert not import_guard.is_in_library_import(None)


def test_the_wait_for_an_import_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    frame = _frame_of("nbddp_test_module", tmp_path, monkeypatch)
    monkeypatch.setattr(import_guard, "_libraries", (str(tmp_path),))
    watch, now = import_guard.ImportWatch(), 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert watch.is_importing(frame, 1)
    now = 109.9
    assert watch.is_importing(frame, 1)
    now = 110.1
    assert not watch.is_importing(frame, 1)
    assert watch.is_importing(frame, 2)
