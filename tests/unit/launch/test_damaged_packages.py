"""What is said of a package on another machine that cannot be imported."""

from types import SimpleNamespace
from typing import Any

import pytest

from nbddp.controller.launch.damaged_packages import damaged_package_step
from nbddp.controller.launch.engine import EngineOptions
from nbddp.controller.launch.missing_packages import nbddp_source
from nbddp.controller.launch.slurm import SlurmEngine
from nbddp.controller.launch.ssh import SshEngine

_FILE = "/venv/lib/python3.11/site-packages/msgspec/__init__.py"
_BEGIN = (
    "ended with exit code 1 and said:     import msgspec\n"
    f'  File "{_FILE}", line 1, in <module>\n'
    "    from ._core import (\n"
)
_NO_LIBRARY = f"{_BEGIN}ImportError: {_FILE}: file too short"
_EMPTY = (
    "ended with exit code 1 and said:\n"
    '  File "/venv/nbddp/wire/flight_recorder/schema.py", line 62, in <module>\n'
    "    class _Part(msgspec.Struct, frozen=True):\n"
    "                ^^^^^^^^^^^^^^\n"
    "AttributeError: module 'msgspec' has no attribute 'Struct'"
)
_BROKEN_FILE = f"said:\n  File \"{_FILE}\", line 1\n    )\n    ^\nSyntaxError: unmatched ')'"
_ELSEWHERE = "said:\n  File \"/own/x.py\", line 1, in <module>\nImportError: cannot import name 'y'"


@pytest.mark.parametrize("output", [_NO_LIBRARY, _EMPTY, _BROKEN_FILE])
def test_the_step_shows_the_error_and_names_the_package(output: str):
    assert damaged_package_step(output, "/venv/bin/python", "ssh n1", "in a terminal") == (
        "`ssh n1 /venv/bin/python -P -m nbddp --help` in a terminal, which should show the same "
        "error. Perhaps msgspec is damaged there, or another version than nbddp needs: `ssh n1 "
        "/venv/bin/python -m pip install --force-reinstall --no-deps msgspec`, or what has "
        "installed it, installs it again"
    )


def test_a_package_that_is_not_known_has_no_name():
    step = damaged_package_step(_ELSEWHERE, "python", "ssh n1", "in a terminal")
    assert "Perhaps a package there is damaged, or" in step
    assert "--force-reinstall --no-deps PACKAGE`" in step


def test_the_package_is_that_of_the_error_and_pip_gets_its_own_name():
    text = (
        '  File "/venv/lib/python3.11/site-packages/nbddp/wire/codec.py", line 9, in <module>\n'
        "ImportError: cannot import name 'Struct' from 'NAME' (/venv/NAME.py)"
    )

    def step(name: str) -> str:
        output = text.replace("NAME", name)
        return damaged_package_step(output, "python", "ssh n1", "in a terminal")

    assert "Perhaps msgspec is damaged there" in step("msgspec")
    assert "--no-deps pyzmq`" in step("zmq.sugar")
    assert f"--no-deps {nbddp_source()}`" in step("nbddp.wire")


@pytest.mark.parametrize(
    "output",
    [
        "",
        "ended with exit code 255 and said: ssh: connect to host n1: No route",
        f"{_NO_LIBRARY}\nssh: connection lost",
        _EMPTY.replace("<module>", "serve"),  # perhaps an error of nbddp
    ],
)
def test_another_end_is_none_of_its(output: str):
    assert damaged_package_step(output, "python", "ssh n1", "in a terminal") == ""


@pytest.mark.parametrize("via", ["", "login"])
def test_the_step_of_ssh(via: str):
    engine: Any = SshEngine(EngineOptions(1, 1, ("n1",), python="/venv/python", via=via))
    engine._processes[0] = SimpleNamespace(end=lambda: _NO_LIBRARY, exit_code=1)
    where = "on login" if via else "in a terminal"
    assert f". Next: `ssh n1 /venv/python -P -m nbddp --help` {where}, which" in engine.end(0)


def test_the_step_of_slurm_comes_after_the_words_of_srun():
    engine: Any = SlurmEngine(EngineOptions(1, 1, python="/venv/python", arguments=("-p", "gpu")))
    said = f"{_NO_LIBRARY}\nsrun: error: n2: task 1: Exited with exit code 1"
    engine._process = SimpleNamespace(end=lambda: said, lines=lambda since: ([], 0), exit_code=1)
    step = ". Next: `srun -p gpu /venv/python -P -m nbddp --help` in a terminal, which"
    assert step in engine.end(0)
