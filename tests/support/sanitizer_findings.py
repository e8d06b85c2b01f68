"""The findings of the sanitizer in a cell that was run, and their comparison with a case."""

from nbddp.controller.diagnosis import Finding
from nbddp.controller.state import VerdictReached
from tests.cases.sanitized import WrongCell
from tests.support.views import RecordingView


def findings(view: RecordingView) -> list[Finding]:
    reports = [event.report for event in view.events if isinstance(event, VerdictReached)]
    return [finding for report in reports for finding in report.findings]


def check_only_finding(view: RecordingView, cell: WrongCell) -> None:
    """Check that only the fault of a case is told, with its ranks, words and lines."""
    found = findings(view)
    assert [finding.kind for finding in found] == [cell.kind], found
    (finding,) = found
    assert (str(finding.culprits), finding.proven) == (cell.culprits, cell.proven)
    at = 0
    for word in cell.words:
        at = finding.headline.find(word, at)
        assert at >= 0, (word, finding.headline)
    assert tuple(line.site.line for line in finding.code) == cell.lines
    assert not finding.is_error
