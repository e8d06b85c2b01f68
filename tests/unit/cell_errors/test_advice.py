"""The last lines of an error: the next step, and the change of the code as a small diff."""

from dataclasses import replace

from nbddp.controller.diagnosis.report import ChangedLine, CodeChange
from nbddp.errors import CellError
from tests.support.cell_errors import cell_error, freed, ok, rendered, report, text


def changed(*lines: ChangedLine) -> CellError:
    found = report()
    finding = replace(found.findings[0], change=CodeChange(7, "c", lines))
    found = replace(found, findings=(finding,))
    return cell_error(freed(0), ok(1), freed(2), report=found, is_plain=False)


SMALL = (
    ChangedLine("removed", 4, "    if rank == 0:"),
    ChangedLine("removed", 5, "        dist.all_reduce(x)"),
    ChangedLine("added", 0, "    dist.all_reduce(x)"),
    ChangedLine("same", 6, "    print(x)"),
)


def test_the_change_is_the_end_of_the_error():
    error = changed(*SMALL)
    shown = (
        "  next      Call it on all ranks.\n"
        "    cell [7], for example\n"
        "      - if rank == 0:\n"
        "      -     dist.all_reduce(x)\n"
        "      + dist.all_reduce(x)\n"
        "        print(x)"
    )
    assert rendered(error).endswith(shown)
    assert text(error).endswith(shown)


def test_added_lines_are_bold():
    (displayed,) = changed(*SMALL)._render_traceback_()
    assert "\n      - if rank == 0:\n" in displayed
    assert "\n\x1b[1m      + dist.all_reduce(x)\x1b[22m\n" in displayed


def test_a_long_change_is_cut():
    lines = rendered(changed(*(ChangedLine("added", 0, f"f({n})") for n in range(15)))).split("\n")
    assert lines[-2:] == ["      + f(10)", "      ... and 4 more lines, on the card"]


def test_a_long_line_is_cut_and_cannot_move_the_cursor():
    error = changed(ChangedLine("added", 0, "f('\x1b[2J" + "x" * 200))
    last = rendered(error).split("\n")[-1]
    assert last.startswith("      + f(' [2Jxxx")
    assert len(last) == 164
    assert last.endswith("…")


def test_the_next_step_stands_once_if_the_card_has_it():
    found = report()
    idle = {rank: replace(each, status="idle") for rank, each in found.findings[0].ranks.items()}
    for finding in (
        replace(found.findings[0], ranks=idle),
        replace(found.findings[0], is_handled=True),
    ):
        error = cell_error(
            freed(0), ok(1), freed(2), report=replace(found, findings=(finding,)), is_plain=False
        )
        (displayed,) = error._render_traceback_()
        assert "next" not in displayed
        assert "  next      Call it on all ranks." in str(error)


def test_a_raised_mismatch_keeps_the_next_step_though_an_except_takes_the_other_errors():
    found = report()
    raised = replace(found.findings[0].ranks[0], status="raised")
    finding = replace(
        found.findings[0],
        kind="mismatched-collective",
        ranks={**found.findings[0].ranks, 0: raised},
        is_handled=True,
    )
    error = cell_error(
        freed(0), ok(1), freed(2), report=replace(found, findings=(finding,)), is_plain=False
    )
    (displayed,) = error._render_traceback_()
    assert "next" in displayed
