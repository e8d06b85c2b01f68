"""An error in the words of a finding, which would be a bug of nbddp, costs no verdict."""

import logging
from typing import Any

import pytest

from nbddp.controller.diagnosis import Code
from nbddp.controller.pool import guarded_diagnosis
from nbddp.controller.pool.guarded_diagnosis import GuardedDiagnosis
from nbddp.wire.flight_recorder import Site
from tests.support.looks import NOW, RUN, Ranks


class _BrokenCode(Code):
    def branches(self, line: int) -> Any:
        raise ZeroDivisionError


def _hung() -> Ranks:
    pool = Ranks(2)
    pool[0].blocked(line=2)
    pool[1].finished()
    return pool


def test_an_error_that_the_source_causes(caplog: pytest.LogCaptureFixture):
    def sources(site: Site) -> Code:
        return _BrokenCode("if rank == 0:\n    dist.all_reduce(x)")

    report = GuardedDiagnosis(sources).diagnose(_hung().views(), now_ns=NOW, run_id=RUN)
    (finding,) = report.proven
    assert (finding.kind, finding.culprits.ranks) == ("missing-rank", (1,))
    assert "ZeroDivisionError" in caplog.text


def test_an_error_in_any_case(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    def fail(*args: object, **facts: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(guarded_diagnosis, "diagnose", fail)
    monkeypatch.setattr(guarded_diagnosis, "compare_records", fail)
    guarded = GuardedDiagnosis(lambda site: None)
    with caplog.at_level(logging.ERROR):
        report = guarded.diagnose(_hung().views(), run_id=RUN)
    assert (report.run_id, report.findings) == (RUN, ())
    assert guarded.compare(_hung().views()) == ()
    assert caplog.text.count("please report this") == 4
