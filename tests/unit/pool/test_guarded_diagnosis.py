"""An error in the words of a finding, which would be a bug of nbddp, costs no verdict."""

import logging
from typing import Any, cast

import pytest

from nbddp.controller.diagnosis import Code, analysis, causes, notices, words
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
    assert caplog.text.count("please report this") == 1


def test_an_error_in_one_finding_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    pool = Ranks(3)
    pool[0].blocked(line=2)
    pool[1].finished()
    pool[2].dead()
    monkeypatch.setitem(cast("dict[str, Any]", words.WRITERS), "dead-rank", _fail)
    guarded = GuardedDiagnosis(lambda site: None)
    for _ in range(2):
        report = guarded.diagnose(pool.views(), now_ns=NOW, run_id=RUN)
    plain, *_ = report.findings
    assert (plain.kind, plain.proven, plain.waiting.ranks) == ("dead-rank", True, (0,))
    assert plain.headline == "Rank 0 waits for rank 2 ('dead-rank'), and nbddp could not say why."
    assert "internal error of nbddp" in plain.reason
    assert caplog.text.count("please report this") == 1


def test_an_error_in_one_search_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(causes._Search, "mismatched", _fail)
    monkeypatch.setattr(notices, "_polls", _fail)
    report = GuardedDiagnosis(lambda site: None).diagnose(_hung().views(), now_ns=NOW, run_id=RUN)
    assert [finding.kind for finding in report.proven] == ["missing-rank"]
    assert "ZeroDivisionError" in caplog.text


def test_an_error_in_one_comparison_leaves_the_others(monkeypatch: pytest.MonkeyPatch):
    pool = Ranks(2)
    for rank in pool:
        rank.done("broadcast", line=1, root=rank.rank)
        rank.finished()
    guarded = GuardedDiagnosis(lambda site: None)
    before = guarded.compare(pool.views(), run_id=RUN)
    monkeypatch.setattr(analysis, "sanitizer_causes", _fail)
    assert [each.kind for each in before] == ["silent-mismatch"]
    assert guarded.compare(pool.views(), run_id=RUN) == before


def _fail(*args: object, **facts: object) -> Any:
    raise ZeroDivisionError
