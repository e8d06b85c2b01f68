"""`import nbddp` loads nothing heavy; modules are imported when they are used."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "IPython", "ipykernel", "ipywidgets", "zmq", "PIL")


def _modules_after(code: str) -> set[str]:
    """Top-level modules in a fresh process that ran ``code``."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.parametrize("heavy", HEAVY)
def test_import_nbddp_does_not_load(heavy: str, modules_of_nbddp: set[str]) -> None:
    assert heavy not in modules_of_nbddp


@pytest.fixture(scope="module")
def modules_of_nbddp() -> set[str]:
    modules = _modules_after("import nbddp")
    assert "nbddp" in modules
    return modules


@pytest.mark.parametrize("heavy", ["torch", "numpy", "PIL"])
def test_load_ext_nbddp_does_not_load(heavy: str, modules_of_the_extension: set[str]) -> None:
    assert heavy not in modules_of_the_extension


@pytest.fixture(scope="module")
def modules_of_the_extension() -> set[str]:
    modules = _modules_after(
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "InteractiveShell.instance().run_line_magic('load_ext', 'nbddp')"
    )
    assert "nbddp" in modules
    return modules


def test_errors_that_callers_catch_are_available():
    import nbddp
    from nbddp import errors

    assert nbddp.NbddpError is errors.NbddpError
    assert nbddp.CellError is errors.CellError
    assert nbddp.RankExitedError is errors.RankExitedError
    assert set(nbddp.__all__) <= {name for name in nbddp.__all__ if hasattr(nbddp, name)}
