"""Environment variables of nbddp."""

from dataclasses import fields
from pathlib import Path

import pytest

from nbddp.errors import BadOptionError
from nbddp.settings import Settings


def test_settings_without_variables_are_the_defaults():
    assert Settings.from_env({}) == Settings()


def test_every_field_can_be_set():
    environ = {}
    expected: dict[str, object] = {}
    for field in fields(Settings):
        default: object = field.default
        text: str
        value: object
        if isinstance(default, bool):
            text, value = ("0", False) if default else ("1", True)
        elif isinstance(default, int):
            text, value = str(default + 1), default + 1
        elif isinstance(default, float):
            text, value = str(default + 0.5), default + 0.5
        else:
            text = "spawn" if field.name == "start_method" else "/tmp"
            value = text
        environ[f"NBDDP_{field.name.upper()}"] = text
        expected[field.name] = value
    found = Settings.from_env(environ)
    assert {field.name: getattr(found, field.name) for field in fields(found)} == expected


def test_the_home_folder_of_logs_may_be_abbreviated():
    found = Settings.from_env({"NBDDP_LOG_DIR": "~/logs"})
    assert found.log_dir == str(Path.home() / "logs")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("true", True), ("ON", True), ("0", False), ("False", False), ("off", False)],
)
def test_switches(text: str, value: bool):
    assert Settings.from_env({"NBDDP_ARENA": text}).arena is value


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("NBDDP_ARENA", "maybe", "NBDDP_ARENA='maybe' is not a switch; use 1 or 0"),
        ("NBDDP_ARENA", "", "NBDDP_ARENA='' is not a switch; use 1 or 0"),
        ("NBDDP_STOP_GRACE_S", "soon", "NBDDP_STOP_GRACE_S='soon' is not a number"),
        ("NBDDP_STOP_GRACE_S", "-1", "NBDDP_STOP_GRACE_S='-1' is negative"),
        ("NBDDP_STOP_GRACE_S", "nan", "NBDDP_STOP_GRACE_S='nan' is not a number"),
        ("NBDDP_STOP_GRACE_S", "inf", "NBDDP_STOP_GRACE_S='inf' is not a number"),
        ("NBDDP_LOG_LIMIT_BYTES", "1.5", "NBDDP_LOG_LIMIT_BYTES='1.5' is not a number"),
        ("NBDDP_START_METHOD", "clone", "NBDDP_START_METHOD='clone'; legal: auto, fork, spawn"),
    ],
)
def test_bad_values(name: str, text: str, words: str):
    with pytest.raises(BadOptionError) as caught:
        Settings.from_env({name: text})
    assert str(caught.value) == words


def test_other_variables_are_ignored():
    assert Settings.from_env({"NBDDP_NO_SUCH_THING": "1", "ARENA": "0"}) == Settings()
