"""Durations as people write them, for `--keep`."""

import argparse
from typing import Any

import pytest

from nbddp.controller.options import checked_keep, duration
from nbddp.durations import parse_duration, write_duration
from nbddp.errors import BadOptionError


@pytest.mark.parametrize(
    ("text", "seconds", "written"),
    [("4h", 14400.0, "4h"), ("90 min", 5400.0, "90min"), ("1.5h", 5400.0, "90min"),
     ("2d", 172800.0, "2d"), ("90s", 90.0, "90s"), ("0.5s", 0.5, "0.5s")],
)  # fmt: skip
def test_a_duration_is_read_and_written(text: str, seconds: float, written: str):
    assert parse_duration(text) == seconds
    assert write_duration(seconds) == written
    assert parse_duration(written) == seconds


@pytest.mark.parametrize("text", ["", "4", "h", "-1h", "4 hours", "1h30min", "inf s", "0s"])
def test_other_texts_are_refused_with_the_legal_units(text: str):
    with pytest.raises(argparse.ArgumentTypeError, match="units: s, min, h, d"):
        duration(text)


@pytest.mark.parametrize("value", [None, 0, 0.0])
def test_a_pool_is_not_kept_unless_it_is_asked_for(value: Any):
    assert checked_keep(value, launcher="local") == 0.0


@pytest.mark.parametrize("value", ["0s", "4", -1, float("nan"), True, "31d", float("inf"), [1]])
def test_a_wrong_time_is_refused(value: Any):
    with pytest.raises(BadOptionError, match="legal:"):
        checked_keep(value, launcher="local")


def test_agents_that_end_with_their_notebook_are_not_kept():
    for launcher in ("ray", "k8s", "psij", "pbs", "lsf", "flux", "of-a-package"):
        with pytest.raises(BadOptionError, match=f"{launcher} end with their notebook. Next: "):
            checked_keep("4h", launcher=launcher)
    assert checked_keep("4h", launcher="ssh") == 4 * 3600.0
