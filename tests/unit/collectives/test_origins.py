"""The origin of an operation: the feature of a library that called it for the user's line."""

import _thread
import linecache
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nbddp.rank.collectives.recording import call_sites
from nbddp.rank.collectives.recording.call_sites import OWN_FOLDER, Sites
from nbddp.wire.flight_recorder import Site, origins

_TORCH = str(Path(torch.__file__).parent)
_PACKAGES = str(Path(_TORCH).parent)
_CELL = "<cell>"
_ENGINE = ("autograd/graph.py", "_engine_run_backward")
_FORWARD = ("nn/parallel/distributed.py", "forward")


class Texts:
    """A writer that keeps the texts."""

    oldest_text = 0

    def __init__(self) -> None:
        self.texts: list[Any] = []

    def text(self, key: object, make: Callable[[], Any]) -> int:
        self.texts.append(make())
        return len(self.texts)


def function_of(file: str, function: str, call: Callable[[], object]) -> Callable[[], object]:
    """Make a function of a file that calls another one."""
    path = file if file.startswith(("<", "/")) else f"{_TORCH}/{file}"
    names: dict[str, Any] = {"call": call}
    exec(compile(f"def {function}():\n    return call()", path, "exec"), names)
    made: Callable[[], object] = names[function]
    return made


def called_through(frames: list[tuple[str, str]], innermost: Callable[[], object]) -> object:
    """Call a function out of a line of a cell, through functions of files."""
    call = innermost
    for file, function in reversed(frames):
        call = function_of(file, function, call)
    loss = types.SimpleNamespace(backward=call)
    return eval(compile("loss.backward()", _CELL, "eval"), {"loss": loss})


def sites() -> tuple[Sites, Texts]:
    texts = Texts()
    machinery = (f"{_TORCH}/", __file__)
    return Sites(lambda file: int(file == _CELL), texts, machinery), texts  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of the cell, for the text of its call."""
    lines = (0, None, ["loss.backward()"], _CELL)
    monkeypatch.setitem(linecache.cache, _CELL, lines)


def site_through(*frames: tuple[str, str]) -> Site:
    found, texts = sites()
    called_through(list(frames), lambda: found.search(sys._getframe(1)))
    (site,) = (each for each in texts.texts if isinstance(each, Site))
    return site


@pytest.mark.parametrize(
    ("frames", "origin"),
    [
        ([], ""),
        ([("distributed/distributed_c10d.py", "all_reduce")], ""),
        ([("_tensor.py", "backward"), _ENGINE], "ddp-gradients"),
        ([("_tensor.py", "backward"), _ENGINE, ("nn/modules/_functions.py", "backward")],
         "batch-statistics"),
        ([_FORWARD, ("nn/modules/_functions.py", "forward")], "batch-statistics"),
        ([_FORWARD, ("nn/parallel/distributed.py", "_distributed_broadcast_coalesced")],
         "ddp-buffers"),
        ([_FORWARD], "DistributedDataParallel"),
        ([("nn/parallel/distributed.py", "__init__"),
          ("distributed/utils.py", "_sync_params_and_buffers")], "parameter-copy"),
        # A hook of the user, called by a feature, calls its operation itself.
        ([_ENGINE, _FORWARD, ("<home>/hooks.py", "hook")], ""),
        ([_FORWARD, (_CELL, "hook"), ("distributed/distributed_c10d.py", "all_reduce")], ""),
        ([("distributed/__init__.py", "breakpoint"),
          ("distributed/distributed_c10d.py", "barrier")], "breakpoint"),
        # A public function may be called by a feature.
        ([("distributed/distributed_c10d.py", "gather_object")], "gather_object"),
        ([("distributed/checkpoint/utils.py", "gather"),
          ("distributed/distributed_c10d.py", "gather_object")], "torch.distributed.checkpoint"),
        ([(f"{_PACKAGES}/accelerate/utils.py", "gather")], "accelerate"),
        ([(f"{_PACKAGES}/accelerate/utils.py", "backward"), _ENGINE], "ddp-gradients"),
        ([(f"{_PACKAGES}/accelerate/utils.py", "gather"),
          ("distributed/distributed_c10d.py", "all_gather_object")], "accelerate"),
        ([(f"{OWN_FOLDER}rank/collectives/state_sync.py", "sync"),
          ("distributed/distributed_c10d.py", "broadcast_object_list")], "broadcast_object_list"),
    ],
)  # fmt: skip
def test_innermost_feature(frames: list[tuple[str, str]], origin: str):
    site = site_through(*frames)
    assert site.origin == origin
    if site.cell and origin:
        assert site.call == "loss.backward()"


def test_an_operation_that_nbddp_calls_for_itself_has_no_line_of_the_user():
    site = site_through(
        (f"{OWN_FOLDER}rank/random_states.py", "share"),
        (f"{OWN_FOLDER}rank/collectives/state_sync.py", "sync"),
        ("distributed/distributed_c10d.py", "broadcast_object_list"),
    )
    assert (site.origin, site.source, site.call) == (origins.RANDOM_NUMBERS, "", "")


def test_a_package_whose_name_begins_with_that_of_torch_or_python_is_another(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(call_sites, "_PACKAGES", ("/usr/lib/python3.11/site-packages/",))
    monkeypatch.setattr(call_sites, "_STDLIB", "/usr/lib/python3.11/")
    found, _ = sites()
    mine, of_python = "/usr/lib/python3.11-mine/train.py", "/usr/lib/python3.11/json.py"
    frames = [(mine, "step"), (of_python, "dump")]
    stack: Any = called_through(frames, lambda: found.stack(sys._getframe(1)))
    assert [site.file for site in stack[:2]] == [mine, _CELL]


def test_one_line_with_several_origins():
    found, texts = sites()
    line = compile("call()", _CELL, "eval")
    offsets: list[int] = []
    for file, function in (_FORWARD, ("distributed/algorithms/join.py", "notify"), _FORWARD):
        call = function_of(
            file, function, lambda: offsets.append(found.search(sys._getframe(1))[0])
        )
        eval(line, {"call": call})
    assert offsets[0] == offsets[2] != offsets[1]
    assert [site.origin for site in texts.texts] == ["DistributedDataParallel", "Join"]


def test_thread_of_autograd():
    """On a GPU a thread of C++ calls the reducer, while the main thread is in the engine."""
    found, texts = sites()
    done = _thread.allocate_lock()
    done.acquire()

    def search() -> None:
        found.search(None)
        done.release()

    def wait_in(file: str, function: str) -> None:
        wait = "begin(search, ()) and done.acquire()"
        names = {"begin": _thread.start_new_thread, "search": search, "done": done}
        exec(compile(f"def {function}():\n    {wait}", f"{_TORCH}/{file}", "exec"), names)
        eval(compile("backward()", _CELL, "eval"), {"backward": names[function]})

    wait_in(*_ENGINE)
    wait_in("_tensor.py", "item")
    assert [site.origin for site in texts.texts] == ["ddp-gradients", ""]
