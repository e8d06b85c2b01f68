"""What is said of a Python on another machine that lacks a package."""

import json
import shlex
import sys
from collections.abc import Callable
from importlib import metadata
from types import SimpleNamespace

import pytest

from nbddp.controller.launch.missing_packages import missing_package

_TRACEBACK = (
    "ended with exit code 1 and said:     import msgspec\n"
    "ModuleNotFoundError: No module named 'msgspec'"
)
OWN = f"3.{sys.version_info.minor}"
TORCH = f"torch=={metadata.version('torch').partition('+')[0]}"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, object] | None], None]:
    """Sets what pip has noted of the origin of nbddp; None: it came from an index."""

    requires, real = metadata.requires("nbddp"), metadata.distribution

    def set_origin(origin: dict[str, object] | None) -> None:
        text = None if origin is None else json.dumps(origin)
        noted = SimpleNamespace(read_text=lambda name: text, requires=requires)
        monkeypatch.setattr(
            metadata, "distribution", lambda name: noted if name == "nbddp" else real(name)
        )

    return set_origin


def test_it_names_the_python_the_package_and_the_command():
    text = missing_package(_TRACEBACK, "/opt/py/bin/python", "n1", by_ssh=True)
    says, _, step = text.partition(". Next: ")
    assert says == "/opt/py/bin/python on n1 lacks the package msgspec, which nbddp needs"
    assert step.startswith(f"if `ssh n1 /opt/py/bin/python -V` says {OWN}, which all nodes need, `")
    words = shlex.split(step.split("`")[3])
    assert words[:6] == ["ssh", "n1", "/opt/py/bin/python", "-m", "pip", "install"]
    assert {TORCH, "msgspec", "pyzmq", "ipython"} <= set(words[6:])
    assert "pytest" not in words
    assert step.endswith(
        f"Python {OWN} of an environment there that has nbddp and the torch of this notebook"
    )


@pytest.mark.parametrize(
    "output",
    [
        "/opt/python3: No module named nbddp",
        "Error while finding module specification (ModuleNotFoundError: No module named 'nbddp')",
        "ModuleNotFoundError: No module named 'nbddp.agent'",
    ],
)
def test_nbddp_itself_is_missing(
    output: str, installed: Callable[[dict[str, object] | None], None]
):
    installed(None)
    text = missing_package(output, "/opt/bin/python3", "a node of the job", by_ssh=False)
    assert text.startswith(
        "/opt/bin/python3 on a node of the job lacks nbddp. Next: if `/opt/bin/python3 -V` "
        f"there says {OWN}, which all nodes need, `/opt/bin/python3 -m pip install "
        f"nbddp {TORCH}` there installs what is missing, or --python PATH"
    )


@pytest.mark.parametrize(
    ("origin", "source", "seen"),
    [
        (
            {"url": "file:///data/my%20clone", "dir_info": {"editable": True}},
            "/data/my clone",
            True,
        ),
        ({"url": "file:///w/nbddp.whl", "archive_info": {}}, "/w/nbddp.whl", True),
        (
            {"url": "https://x.org/nbddp", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "git+https://x.org/nbddp@abc",
            False,
        ),
        ({"url": "https://x.org/nbddp.whl", "archive_info": {}}, "https://x.org/nbddp.whl", False),
    ],
)
def test_nbddp_is_installed_there_from_where_it_was_installed_here(
    origin: dict[str, object],
    source: str,
    seen: bool,
    installed: Callable[[dict[str, object] | None], None],
):
    installed(origin)
    python = f"env/bin/python{OWN}"
    text = missing_package("No module named nbddp", python, "n1", by_ssh=True)
    words = shlex.split(text.split("`")[1])
    assert words[2:] == [python, "-m", "pip", "install", source, TORCH]
    assert (f"(if {source}, from which nbddp is installed here, is there, too;" in text) == seen


@pytest.mark.parametrize("output", [_TRACEBACK, "No module named nbddp"])
@pytest.mark.parametrize("python", ["/usr/bin/python3", "python3", "/site/python-of-system"])
def test_a_python_of_the_system_gets_a_virtual_environment(
    python: str, output: str, installed: Callable[[dict[str, object] | None], None]
):
    """Its pip installs nothing: externally-managed-environment."""
    installed(None)
    text = missing_package(output, python, "n1", by_ssh=True)
    ssh, host, command = shlex.split(text.split("`")[3])
    assert (ssh, host) == ("ssh", "n1")
    assert command == (
        f"{python} -m venv nbddp-env && nbddp-env/bin/python -m pip install nbddp {TORCH}"
    )
    assert "virtual environment, for --python nbddp-env/bin/python, or --python PATH" in text


@pytest.mark.parametrize(
    ("python", "output"),
    [
        ("/opt/versions/3.9.1/bin/python", "No module named nbddp"),
        ("/env/bin/python3.9", "No module named nbddp"),
        ("python3", "File \"/usr/lib/python3.9/runpy.py\"\nNo module named 'msgspec'"),
    ],
)
def test_a_python_of_another_version_is_not_advised_to_install_anything(python: str, output: str):
    text = missing_package(output, python, "n1", by_ssh=True)
    assert f"and is Python 3.9, as its path says: all nodes need Python {OWN}" in text
    assert f"Next: --python PATH names a Python {OWN} there" in text
    assert "pip" not in text


def test_another_end_is_none_of_its():
    assert not missing_package("ssh: connect to host n1: No route", "p", "n1", by_ssh=True)
