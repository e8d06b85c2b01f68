"""A diagnosis on request: ranks describe themselves, and silent ranks are seen from outside."""

from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.controller.state import NodesSilent, SilentNode
from nbddp.controller.state.actions import Diagnosed
from nbddp.controller.state.stimuli import DiagnoseRequested
from nbddp.notebook.render.stacks import stacks
from nbddp.wire.messages import DescribeRank, DumpStack
from nbddp.wire.rank_set import RankSet
from tests.support.recovering import Pool, agent_requests, kinds, notice, of_type, requests
from tests.support.recovery_scenes import stuck_pool


def test_a_diagnosis_on_request_while_no_cell_runs():
    pool = Pool(2)
    pool.report = notice()
    looks = pool.feed(DiagnoseRequested(7))
    [answer] = of_type(pool.answer_looks(looks), Diagnosed)
    assert (answer.number, answer.report) == (7, pool.report)
    assert answer.looks == pool.looks
    assert (answer.peeks, answer.silent) == ({}, RankSet())


def test_a_diagnosis_on_request_changes_nothing():
    pool, _ = stuck_pool()
    answer = pool.answer_looks(pool.feed(DiagnoseRequested(1)))
    assert kinds(answer) == ["Diagnosed"]


def test_ranks_are_peeked_at_on_request_and_when_they_are_silent():
    pool = Pool(3)
    del pool.looks[2]
    looks = pool.feed(DiagnoseRequested(1, peek=RankSet.of([0])))
    pool.answer_looks(looks)
    peeks = pool.tick(after_s=0.4)
    assert kinds(peeks) == ["DumpStack 0,2"]
    [answer] = of_type(pool.answer_peeks(peeks), Diagnosed)
    assert sorted(answer.peeks) == [0, 2]
    assert sorted(answer.looks) == [0, 1]
    assert answer.silent == RankSet()
    assert sorted(answer.only(RankSet.of([0])).peeks) == [0]
    assert answer.only(RankSet.of([2])).looks == {}


def test_a_diagnosis_without_any_answer():
    pool = Pool(2)
    pool.looks = {}
    pool.feed(DiagnoseRequested(1))
    pool.tick(after_s=0.4)
    [answer] = of_type(pool.tick(after_s=10.0), Diagnosed)
    assert answer.silent == RankSet.all(2)
    assert [answer.views[rank].unheard for rank in (0, 1)] == [
        "the agent of node 0 does not answer either"
    ] * 2


def test_of_ranks_on_a_silent_node_nothing_is_known():
    pool = Pool(2, nnodes=2)
    for rank in (2, 3):
        del pool.looks[rank]
    pool.feed(NodesSilent((SilentNode(1, "n2", pool.now - 12.0, 60.0),)))
    pool.answer_looks(pool.feed(DiagnoseRequested(1, peek=RankSet.all(4))))
    peeks = pool.tick(after_s=0.4)
    assert kinds(peeks) == ["DumpStack 0-1"]  # no answer of the other node is waited for
    [answer] = of_type(pool.answer_peeks(peeks), Diagnosed)
    assert answer.views[2].unheard == "nothing has been heard of node 1 (n2) for 12 s"
    assert answer.views[0].unheard == ""
    known = "nothing has been heard of node 1 (n2) for 12 s, so nothing is known of them"
    shown = stacks(answer.views)["text/plain"]
    assert f"ranks 2-3: did not answer: {known}" in shown
    place = RankReports(WaitForGraph(answer.views), 0, "run1").rank(2).predicate
    assert place.describe(2) == f"do not answer: {known}"


def test_plain_ranks_are_only_peeked_at():
    pool = Pool(2, plain=True)
    peeks = pool.feed(DiagnoseRequested(1, peek=RankSet.of([1])))
    assert kinds(peeks) == ["DumpStack 0-1"]
    assert kinds(pool.answer_peeks(peeks)) == ["Diagnosed"]


def test_a_survey_disturbs_only_ranks_that_do_not_tell():
    pool = Pool(3)
    del pool.looks[2]
    pool.report = notice()
    looks = pool.feed(DiagnoseRequested(1, last=1, survey=True))
    assert [look.memory for _, look in requests(looks, DescribeRank)] == [True]
    pool.answer_looks(looks)
    peeks = pool.tick(after_s=0.4)
    asked = [(peek.ranks, peek.stack) for _, peek in agent_requests(peeks, DumpStack)]
    assert asked == [((2,), True), ((0, 1), False)]
    [answer] = of_type(pool.answer_peeks(peeks), Diagnosed)
    assert sorted(answer.peeks) == [0, 1, 2]
    assert answer.report.findings == ()  # no verdict was asked for


def test_two_requests_at_once():
    pool = Pool(2)
    first = pool.feed(DiagnoseRequested(1))
    second = pool.feed(DiagnoseRequested(2))
    assert of_type(pool.answer_looks(second), Diagnosed)[0].number == 2
    assert of_type(pool.answer_looks(first), Diagnosed)[0].number == 1
