"""Imports for which an interrupt waits."""

import importlib
import sys
import time
from pathlib import Path
from types import FrameType, SimpleNamespace

import pytest

from nbddp.rank.cells import import_guard
from nbddp.wire.messages import ImportChanged

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
    watch, now, used = import_guard.ImportWatch(), 100.0, 5.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "thread_time", lambda: used)
    assert watch.is_importing(frame, 1)
    now, used = 129.9, 14.9
    assert watch.is_importing(frame, 1)
    used = 15.1
    assert not watch.is_importing(frame, 1)
    assert watch.is_importing(frame, 2)
    now = 160.0
    assert not watch.is_importing(frame, 2)


def test_the_library_that_a_cell_imports_is_that_which_it_has_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A library imports others, and a module of the user is no library."""
    (tmp_path / "nbddp_outer.py").write_text("import nbddp_test_module")
    frame = _frame_of("nbddp_test_module", tmp_path, monkeypatch)
    assert import_guard.imported_library(frame) == ""
    monkeypatch.setattr(import_guard, "_libraries", (str(tmp_path),))
    assert import_guard.imported_library(frame) == "nbddp_test_module"
    outer = importlib.import_module("nbddp_outer")
    assert import_guard.imported_library(outer.nbddp_test_module.frame) == "nbddp_outer"
    for name in ("nbddp_outer", "nbddp_test_module"):
        del sys.modules[name]
    assert import_guard.imported_library(sys._getframe()) == ""
    assert import_guard.imported_library(None) == ""


def test_changes_are_reported_once_and_anew_for_each_cell(monkeypatch: pytest.MonkeyPatch):
    sent: list[ImportChanged] = []
    shell, link = SimpleNamespace(run_id="a"), SimpleNamespace(send=sent.append)
    seen = {"now": 100.0, "module": ""}
    monkeypatch.setattr(time, "monotonic", lambda: seen["now"])
    monkeypatch.setattr(import_guard, "imported_library", lambda frame: seen["module"])
    reports = import_guard.ImportReports(shell, link, 3)  # type: ignore[arg-type]
    for now, module, run_id in (
        (100.0, "torch._dynamo", "a"),
        (100.1, "", "a"),  # too early
        (100.3, "torch._dynamo", "a"),
        (100.6, "", "a"),
        (100.9, "numpy", "a"),
        (101.2, "numpy", "b"),
        (101.5, "", None),
        (101.8, "", "c"),
    ):
        seen.update(now=now, module=module)
        shell.run_id = run_id
        reports.look()
    assert [(event.run_id, event.rank, event.module) for event in sent] == [
        ("a", 3, "torch._dynamo"), ("a", 3, ""), ("a", 3, "numpy"), ("b", 3, "numpy"),
    ]  # fmt: skip
