"""The card of a report, as text and as HTML."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from nbddp.controller.diagnosis.phrases import Predicate, RankVerb
from nbddp.controller.diagnosis.rank_view import RankView
from nbddp.controller.diagnosis.report import (
    KINDS,
    ChangedLine,
    CodeChange,
    CodeLine,
    GroupRef,
    Kind,
    PerRank,
    Report,
)
from nbddp.notebook.render import diagnosis_card
from nbddp.notebook.render.diagnosis_card import card, line
from nbddp.wire.flight_recorder.schema import GroupInfo, RankLook, Site, ThreadLook, Wait
from nbddp.wire.rank_set import RankSet
from tests.support.findings import CALL, IF, WAITS, finding, missing, verdict
from tests.support.looks import Ranks
from tests.support.traces import recorders


def text(report: Report, **options: Any) -> str:
    found = card(report, **options)["text/plain"]
    assert max(map(len, found.splitlines())) <= 100
    return found


def html(report: Report, **options: Any) -> str:
    return card(report, **options)["text/html"]


# --- a deadlock ----------------------------------------------------------------------------------


def test_a_deadlock_that_was_ended():
    assert text(verdict(missing()), acted=True).splitlines() == [
        "Deadlock: rank 2 never called all_reduce #17",
        "  > rank 2 has finished the cell, at cell [4], line 3: if rank != 2:",
        "    ranks 0-1,3 have waited in all_reduce #17 for 3.0 s, at cell [4], line 5: "
        "dist.all_reduce(x)",
        "  Proven: rank 2 has finished the cell.",
        "  Now: ranks 0-1,3 are freed: an exception is raised in their lines. They keep every "
        "variable, and",
        "    the next cell runs.",
    ]


def test_html_tells_the_same():
    found = html(verdict(missing()), acted=True)
    for part in (
        '<b role="heading" aria-level="4">Deadlock: rank 2 never called all_reduce #17</b>',
        "<b>rank 2</b>",
        "ranks 0-1,3",
        "have waited in all_reduce #17 for 3.0 s",
        "cell [4], line 5",
        "dist.all_reduce(x)</code>",
        "if rank != 2:</code>",
        "Proven:",
        "are freed",
        "call <code>all_reduce</code> on all ranks",
    ):
        assert part in found
    assert "missing-rank" not in found  # a label for programs


def test_a_deadlock_that_is_shown_only():
    found = text(verdict(missing()))
    assert (
        "Now: nothing is interrupted. The stop button frees ranks 0-1,3, which keep every variable."
        in found
    )


def test_a_cell_with_async_is_not_reached_by_the_stop_button():
    found = text(verdict(missing()), means="`%ddp interrupt`")
    assert "nothing is interrupted. `%ddp interrupt` frees ranks 0-1,3, which keep" in found


def test_a_deadlock_that_its_own_timeout_will_end():
    report = verdict(missing(), earliest_timeout_ms=5000, earliest_timeout_left_ms=3200)
    assert "Now: the operation ends by its own timeout of 5.0 s, in 3.2 s." in text(report)
    over = text(report, is_over=True)
    assert "Now: the operation was left to its own timeout of 5.0 s, and the cell has ended" in over
    assert "The stop button" not in over
    limited = text(report, is_over=True, timeout_s=6.0)
    assert "Now: the cell has ended: it ran longer than its --timeout of 6 s." in limited
    assert "are freed" in text(report, acted=True, is_over=True)
    assert "are freed" in text(report, acted=True)
    long = verdict(missing(), earliest_timeout_ms=90_000, earliest_timeout_left_ms=80_000)
    assert "its own timeout" not in text(long)
    assert "ends by its own timeout of 1:30 min" in text(long, own_timeout_s=120.0)
    report = verdict(missing(), earliest_timeout_ms=1_800_000, earliest_timeout_left_ms=1_790_000)
    assert "timeout" not in text(report)


def test_ranks_that_raised_by_their_own_timeout_are_not_said_to_be_freed():
    report = verdict(missing(), earliest_timeout_ms=6000, earliest_timeout_left_ms=0)

    def now(*ranks: int) -> str:
        return " ".join(text(report, acted=True, timed_out=RankSet.of(ranks)).split())

    assert (
        "Now: rank 0 was left to its own timeout of 6.0 s and has raised; ranks 1,3 are freed: an "
        "exception is raised in their lines. They keep every variable, and the next cell runs."
    ) in now(0)
    assert (
        "Now: ranks 0-1 were left to their own timeouts and have raised; rank 3 is freed: an "
        "exception is raised in its line. They keep"
    ) in now(0, 1)
    assert "have raised; ranks that have come since are freed" in now(0, 1, 3)


def test_a_card_with_late_ranks_says_so_until_the_cell_ends():
    pool = Ranks(4)
    pool[0].blocked("barrier")
    pool[1].finished()
    report = pool.diagnose()
    assert "(so far; ranks 2-3 still run)" in text(report, acted=True).splitlines()[0]
    assert "so far" in html(report, acted=True)
    assert "so far" not in text(report, acted=True, is_over=True)


def test_one_rank_is_named_in_the_singular():
    found = text(verdict(missing(2, 1)), acted=True)
    assert "    rank 0 has waited in all_reduce #17 for 3.0 s, at cell [4], line 5" in found
    assert "rank 0 is freed: an exception is raised in its line. It keeps every variable" in found


def test_a_notice_claims_no_bug():
    report = Report("run", (missing(kind="straggler", proven=False),))
    found = text(report)
    assert found.startswith("Notice: rank 2 never")
    assert "  Not proven: rank 2 runs Python code." in found
    assert "Now: nothing is interrupted, the cell may still go on. The stop button frees" in found
    assert "Deadlock" not in html(report)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_title(kind: Kind):
    found = text(Report("run", (missing(kind=kind),)))
    assert re.match(r"(Deadlock|Mismatch|Error|Dead rank|Notice|Warning): rank 2 never", found)
    assert text(Report("run", (missing(kind=kind, proven=False),))).startswith("Notice: ")


def test_ranks_that_left_the_debugger_are_told_in_a_line():
    found = verdict(missing(kind="left-debugger", headline="Rank 2 left the debugger."))
    assert text(found, acted=True) == (
        "rank 2 left the debugger; ranks 0-1,3, which waited for it in all_reduce #17, were freed"
    )
    assert "<details" not in html(found, acted=True)
    # With on_deadlock=report the card says how to free the ranks.
    assert text(found).startswith("Notice: rank 2 left the debugger\n")
    assert "The stop button frees ranks 0-1,3" in text(found)


def test_an_error_has_a_card_only_if_no_error_tells_of_the_ranks_that_waited():
    found = verdict(missing(kind="first-error", headline="Rank 2 raised OSError: boom."))
    assert diagnosis_card.is_told_by_error(found, acted=True)
    assert not diagnosis_card.is_told_by_error(found, acted=False)
    assert not diagnosis_card.is_told_by_error(verdict(missing()), acted=True)
    assert text(found).startswith("Error: rank 2 raised OSError: boom\n")  # on_deadlock=report


def test_a_title_goes_on_behind_its_word():
    found = text(verdict(missing(headline="DDP(net) was never called.", begins_with_ranks=False)))
    assert found.startswith("Deadlock: DDP(net) was never called\n")
    assert text(verdict(missing(headline="Rank 2 sleeps."))).startswith("Deadlock: rank 2 sleeps\n")


def test_several_ranks_are_told_in_the_plural():
    last = "last operation was all_reduce #16"
    what = Predicate(RankVerb.HAS_FINISHED, aside=(f"; its {last}", f"; their {last}"))
    ended = [PerRank(rank, "finished", what) for rank in (0, 1)]
    found = text(verdict(finding([0, 1], [2], ended)))
    assert "> ranks 0-1 have finished the cell; their last operation was all_reduce #16" in found
    now = Predicate(RankVerb.RUNS, ", now in sleep()")
    runs = [PerRank(rank, "running", now) for rank in (0, 1)]
    assert "> ranks 0-1 run, now in sleep()" in text(verdict(finding([0, 1], [2], runs)))


def test_tensors_with_partial_results_are_not_said_to_be_kept():
    torn = {"all_reduce #17": RankSet.of([0, 1, 3]), "broadcast #2": RankSet.of([1])}
    found = " ".join(card(verdict(missing()), acted=True, torn=torn)["text/plain"].split())
    assert (
        "They keep every variable, but the tensors of all_reduce #17 on ranks 0-1,3 and broadcast "
        "#2 on rank 1 may hold partial results, and the next cell runs." in found
    )
    found = " ".join(
        card(verdict(missing()), torn={"send #1": RankSet.of([0])})["text/plain"].split()
    )
    assert "which keep every variable, but the tensors of send #1 on rank 0 may hold" in found


def test_dead_ranks_keep_no_variables():
    found = text(verdict(missing(kind="dead-rank")), acted=True)
    assert "ranks 0-1,3 are freed" in found
    assert "They keep every variable." in found
    assert "next cell" not in found


def test_a_finding_without_a_hang_has_no_outcome():
    silent = missing(kind="silent-mismatch")
    quiet = finding([2], [], silent.ranks.values(), kind="silent-mismatch")
    wrong = finding([2], [], silent.ranks.values(), kind="silent-mismatch", is_error=True)
    assert text(verdict(wrong)).startswith("Mismatch: rank 2")
    found = text(Report("run", (quiet,)))
    assert found.startswith("Warning: ")
    assert "Now:" not in found


def test_suspicions_begin_with_perhaps():
    found = text(verdict(missing(suspicions=("rank 2 took another branch.",))))
    assert "  Perhaps: rank 2 took another branch." in found


def test_nothing_waits():
    idle = Predicate(RankVerb.RUNS, " no cell")
    report = Report("run", ranks={rank: PerRank(rank, "idle", idle) for rank in range(2)})
    assert text(report).splitlines() == [
        "No rank waits for another",
        "    ranks 0-1 run no cell",
    ]
    assert line(report) == ""


# --- several findings ----------------------------------------------------------------------------


def test_several_findings_share_their_outcome():
    second = missing(
        kind="straggler", proven=False, headline="rank 3 is slow", next_step="wait for it"
    )
    found = text(verdict(missing(), second))
    assert found.count("Now:") == 1
    assert found.index("Now:") < found.index("Notice: rank 3 is slow")
    assert found.count("Next:") == 2
    third = missing(headline="rank 1 never called barrier")
    found = text(verdict(missing(), third, second))
    assert found.count("Now:") == 1
    assert found.index("rank 1 never called barrier") < found.index("Now:")
    assert found.index("Now:") < found.index("Notice: rank 3 is slow")


def test_the_same_advice_is_given_once():
    found = text(verdict(missing(), missing(headline="another one")))
    assert found.count("Next:") == 1


def test_the_rest_of_many_findings_is_named():
    many = [missing(headline=f"headline {number}") for number in range(5)]
    found = text(verdict(*many))
    assert "Also: Deadlock: headline 3; Deadlock: headline 4" in found
    assert html(verdict(*many)).count("headline 4") == 1


# --- many ranks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [64, 512])
def test_many_ranks_stay_small(count: int):
    bundle = card(verdict(missing(count, 17)), acted=True)
    assert len(bundle["text/html"]) < 3000
    assert f"ranks 0-16,18-{count - 1} have waited in all_reduce #17" in bundle["text/plain"]


def test_many_ranks_that_lie_apart_are_counted():
    waits = [PerRank(r, "running", WAITS, CALL, 3.0) for r in range(0, 512, 2)]
    found = text(verdict(finding([], range(0, 512, 2), waits)), acted=True)
    assert "even ranks 0-510 have waited in all_reduce" in found
    assert len(found) < 1000


def test_the_answer_stands_before_its_evidence():
    change = CodeChange(
        4, "c", (ChangedLine("removed", 5, "old()"), ChangedLine("added", 0, "new()"))
    )
    code = (CodeLine(CALL, RankSet.of([0])),)
    why = missing(code=code, change=change, suspicions=("rank 2 took another branch",))
    bundle = card(verdict(why, missing(headline="other", next_step="wait")))
    order = ["Deadlock:", "Next:", "new()", "waited in all_reduce", "[0]", "Proven:", "Perhaps:"]
    for shown in bundle.values():
        first, _, second = shown.partition("Deadlock: other")
        places = [first.index(part) for part in order]
        assert places == sorted(places), shown
        assert second.index("Next:") < second.index("Proven:")


def test_many_places_are_cut_and_in_the_details():
    scattered = [
        PerRank(
            rank,
            "running",
            Predicate(RankVerb.WAITS),
            Site(file="c", line=rank + 1, cell=1, source=f"f({rank})"),
        )
        for rank in range(64)
    ]
    report = verdict(
        finding([], range(64), scattered), ranks={each.rank: each for each in scattered}
    )
    assert "    and ranks 6-63 elsewhere" in text(report)
    found = html(report)
    assert ">All ranks<" in found
    assert "f(39)" in found
    assert "and 24 more" in found
    assert len(found) < 35_000


# --- details -------------------------------------------------------------------------------------


def seen() -> Mapping[int, RankView]:
    group = GroupInfo.of(pg_id="w", name="0", desc="default_pg", ranks=(0, 1, 2, 3))
    ranks = recorders(4)
    for number in range(17):
        for recorder in ranks:
            if number < 16 or recorder.rank != 2:
                end = None if number == 16 else number * 10 + 5
                recorder.collective(at=number * 10, end=end, group=group)
    return {
        recorder.rank: RankView(
            recorder.rank,
            "running",
            look=RankLook(
                rank=recorder.rank,
                pid=1,
                activity="running",
                version=1,
                time_ns=1,
                groups=(group,),
                operations=tuple(recorder.operations),
            ),
        )
        for recorder in ranks
    }


def test_details_are_folded():
    found = html(verdict(missing()), views=seen())
    assert found.count("<details") == found.count("</details>") == 3
    assert "Last operations" in found
    assert "all_reduce #10" in found
    assert "never came" in found
    assert "all_reduce #9<" not in found


def test_operations_of_earlier_cells_are_left_out():
    report = replace(verdict(missing()), run_id="next")
    assert "Last operations" not in html(report, views=seen())


def test_a_rank_waits_for_an_asynchronous_operation_only_where_it_was_seen_to():
    group = GroupInfo.of(pg_id="w", name="0", ranks=(0, 1))
    views = {}
    for recorder in recorders(2):
        operation = recorder.collective(at=1, async_op=True, group=group)
        wait = Wait(kind="operation", record_ids=(operation.record_id,), since_ns=1)
        views[recorder.rank] = RankView(
            recorder.rank,
            "running",
            look=RankLook(
                rank=recorder.rank,
                pid=1,
                activity="running",
                version=1,
                time_ns=1,
                threads=(ThreadLook(name="", is_main=True, wait=wait if recorder.rank else None),),
                groups=(group,),
                operations=(operation,),
            ),
        )
    found = html(verdict(missing()), views=views)
    assert ">open [4]:6<" in found
    assert ">waits [4]:6<" in found


def test_details_of_many_ranks_are_folded_too():
    group = GroupInfo.of(pg_id="w", name="0", ranks=tuple(range(64)))
    ranks = recorders(64)
    for recorder in ranks:
        if recorder.rank != 17:
            recorder.collective(at=1, group=group)
    views = {
        recorder.rank: RankView(
            recorder.rank,
            "running",
            look=RankLook(
                rank=recorder.rank,
                pid=1,
                activity="running",
                version=1,
                time_ns=1,
                groups=(group,),
                operations=tuple(recorder.operations),
            ),
        )
        for recorder in ranks
    }
    found = html(verdict(missing(64, 17)), views=views)
    assert "waits [4]:6: 0-16,18-63; never came: 17" in found
    assert len(found) < 6000


# --- the line ------------------------------------------------------------------------------------


def test_the_line():
    report = verdict(missing(since_s=61.0))
    assert line(report) == (
        "rank 2 never called all_reduce #17 (1:01 min); rank 2 last at cell [4], line 3"
    )
    slow = finding(
        [2], [], [PerRank(2, "running", Predicate(RankVerb.RUNS), IF)], headline="Rank 2 is slow."
    )
    assert line(verdict(slow)) == "rank 2 is slow; rank 2 at cell [4], line 3"
    long = missing(headline="a long headline " * 20)
    assert 90 < len(line(verdict(long))) <= 100
    assert line(verdict(long)).endswith("…; rank 2 last at cell [4], line 3")


def test_the_line_leaves_out_the_cell_before_it_cuts_a_call():
    slow = PerRank(2, "running", Predicate(RankVerb.RUNS), CALL)
    headline = "Ranks 0-1,3-63 wait in all_reduce #49 for rank 2, which is in time.sleep()."
    found = finding([2], [0], [slow], headline=headline, proven=False, since_s=10.1)
    assert line(Report("run", (found,))) == (
        "ranks 0-1,3-63 wait in all_reduce #49 for rank 2, which is in time.sleep(), at line 5 "
        "(10.1 s)"
    )


def test_the_line_of_a_notice_names_a_rank_once():
    pool = Ranks(64)
    for state in pool:
        if state.rank != 2:
            state.blocked(line=5, at_s=3.3)
    pool[2].runs()
    assert line(pool.diagnose()) == (
        "ranks 0-1,3-63 wait in all_reduce for rank 2, which still runs, at cell [3], line 2 "
        "(3.3 s)"
    )
    pool = Ranks(2)
    pool[0].blocked("recv", peer=1, at_s=3.3)
    pool[1].runs()
    assert line(pool.diagnose()) == (
        "rank 0 waits in recv from rank 1, which still runs, at cell [3], line 2 (3.3 s)"
    )


# --- safe everywhere -----------------------------------------------------------------------------


def test_everything_is_escaped():
    evil = "</td><script>alert(1)</script>\x1b[2J"
    site = Site(file=evil, line=1, function=evil, source=f"x = '{evil}' & `y`")
    found = finding(
        [0],
        [1],
        [
            PerRank(0, "running", Predicate(RankVerb.WAITS, f" {evil}"), site, 1.0),
            PerRank(1, "running", Predicate(RankVerb.NONE, evil), site, 1.0),
        ],
        headline=evil,
        reason=f"{evil} `<b>`",
        next_step=evil,
        suspicions=(evil,),
        group=GroupRef(evil, evil, evil),
    )
    report = verdict(found, found, found, found, ranks=found.ranks)
    bundle = card(report)
    assert "<script" not in bundle["text/html"]
    assert "<code>&lt;b&gt;</code>" in bundle["text/html"]
    assert "\x1b" not in bundle["text/html"] + bundle["text/plain"] + line(report)


def test_a_lone_backquote_stays():
    assert "it`s" in html(verdict(missing(next_step="it`s")))


def test_html_keeps_to_what_untrusted_notebooks_let_through():
    found = html(verdict(missing(), missing(headline="b")), views=seen())
    assert not re.search(r"<(?:style|script|svg|iframe)|\son\w+=|var\(|currentColor|\dch\b", found)
    assert not re.search(r"[^-]color:(?!transparent)", found)  # text has the colour of its theme
    colours = {diagnosis_card._RED, diagnosis_card._AMBER, diagnosis_card._BLUE}
    assert set(re.findall(r"#[0-9a-f]{6}", found)) <= colours
