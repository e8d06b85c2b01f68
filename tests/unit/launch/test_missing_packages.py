"""What is said of a Python on another machine that lacks a package."""

import shlex
from importlib import metadata

import pytest

from nbddp.controller.launch.missing_packages import missing_package

_TRACEBACK = (
    "ended with exit code 1 and said:     import msgspec\n"
    "ModuleNotFoundError: No module named 'msgspec'"
)
TORCH = f"torch=={metadata.version('torch').partition('+')[0]}"


def test_it_names_the_python_the_package_and_the_command():
    text = missing_package(_TRACEBACK, "/usr/bin/python3", "n1", by_ssh=True)
    says, _, step = text.partition(". Next: ")
    assert says == "/usr/bin/python3 on n1 lacks the package msgspec, which nbddp needs"
    words = shlex.split(step.split("`")[1])
    assert words[:6] == ["ssh", "n1", "/usr/bin/python3", "-m", "pip", "install"]
    assert {TORCH, "msgspec", "pyzmq", "ipython"} <= set(words[6:])
    assert "pytest" not in words
    assert step.endswith(
        "Python of an environment there that has nbddp and the torch of this notebook"
    )


@pytest.mark.parametrize(
    "output",
    [
        "/usr/bin/python3: No module named nbddp",
        "Error while finding module specification (ModuleNotFoundError: No module named 'nbddp')",
        "ModuleNotFoundError: No module named 'nbddp.agent'",
    ],
)
def test_nbddp_itself_is_missing(output: str):
    text = missing_package(output, "/usr/bin/python3", "a node of the job", by_ssh=False)
    assert text.startswith(
        "/usr/bin/python3 on a node of the job lacks nbddp. Next: `/usr/bin/python3 -m pip install "
        f"nbddp {TORCH}` there installs what is missing, or --python PATH"
    )


def test_another_end_is_none_of_its():
    assert not missing_package("ssh: connect to host n1: No route", "p", "n1", by_ssh=True)
