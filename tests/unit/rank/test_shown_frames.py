"""Which frames of an error are cut before the user sees them."""

from pathlib import Path

import pytest
import torch

import nbddp
from nbddp.errors import NbddpError
from nbddp.rank.cells import shell

_TORCH = Path(torch.__file__).parent
_OWN = Path(nbddp.__file__).parent


def _raised_in(file: Path, error: str) -> BaseException:
    """An error of a function of a file that the user's code calls."""
    names: dict[str, object] = {}
    exec(compile(f"def step(): raise {error}", str(file), "exec"), names)
    try:
        exec(compile("step()", "<ipython-input-1-ab>", "exec"), names)
    except BaseException as raised:  # noqa: BLE001 - an interrupt, too
        return raised
    raise AssertionError("nothing was raised")


def _files(error: BaseException) -> list[str]:
    files = []
    step = error.__traceback__
    while step is not None:
        files.append(step.tb_frame.f_code.co_filename)
        step = step.tb_next
    return files


@pytest.mark.parametrize(
    ("file", "is_shown"),
    [
        (_TORCH / "nn" / "functional.py", False),
        (_TORCH.parent / "torchvision" / "models.py", True),
        (_OWN / "rank" / "server.py", False),
        (_OWN.parent / "nbddp_recipes" / "train.py", True),
    ],
)
def test_an_interrupt_shows_packages_whose_names_begin_with_those_of_hidden_ones(
    file: Path, *, is_shown: bool
):
    error = _raised_in(file, "KeyboardInterrupt")
    shell._cut_own_frames(error)
    assert (str(file) in _files(error)) == is_shown


@pytest.mark.parametrize(
    ("file", "is_shown"),
    [(_OWN / "rank" / "server.py", False), (_OWN.parent / "nbddp_recipes" / "train.py", True)],
)
def test_an_error_of_the_notebook_shows_them_too(file: Path, *, is_shown: bool):
    error = NbddpError("bad").with_traceback(_raised_in(file, "ValueError").__traceback__)
    assert (file.name in "\n".join(error._render_traceback_())) == is_shown
