"""The engine in the docstring of `Engine`, in a package that adds it as a launcher."""

import doctest
from pathlib import Path

import pytest

from nbddp.controller.launch import Engine
from nbddp.controller.options import PoolOptions
from tests.support.public_api import text_of
from tests.support.remote_pools import start

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool]


def install(folder: Path) -> None:
    """Write a package as pip would: its module, and the entry point."""
    sources = [each.source for each in doctest.DocTestParser().get_examples(text_of(Engine))]
    (folder / "here_engine.py").write_text("".join(sources))
    info = folder / "here_engine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: here-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[nbddp.launchers]\nhere = here_engine:HereEngine\n")


def test_a_pool_by_the_engine_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pool = start(PoolOptions.checked(1, nnodes=2, launcher="here"))
    try:
        pool.run("t = torch.ones(1) * rank\ndist.all_reduce(t)")
        assert pool.pull("(rank, t.item())") == [(0, 1.0), (1, 1.0)]
    finally:
        pool.stop()
