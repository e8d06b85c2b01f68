"""Fixtures: a hub whose agents the test plays."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub_stage import Stage


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for sockets: a path of `tmp_path` may be too long."""
    folder = Path(tempfile.mkdtemp(prefix="nbt-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def stage(short_folder: Path) -> Iterator[Stage]:
    made = Stage(short_folder)
    yield made
    made.close()
