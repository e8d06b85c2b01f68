"""The lines around a call."""

from collections.abc import ValuesView
from typing import Any

from msgspec.structs import replace

from nbddp.controller.diagnosis.callers import frames_or_source
from nbddp.controller.diagnosis.control_flow import no_sources
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from tests.support.looks import Ranks, site

RANKS = 16


def test_the_lines_around_the_calls_of_many_ranks_cost_no_square_of_their_number():
    walks = 0

    class Counting(dict[int, Any]):
        def values(self) -> ValuesView[Any]:  # type: ignore[override]
            nonlocal walks
            walks += 1
            return super().values()

    pool = Ranks(RANKS)
    for state in pool:
        state.done("all_reduce", line=2)
    graph = WaitForGraph(pool.views())
    for history in graph.histories.values():
        history.operations = Counting(history.operations)
    here = site(2, function="step")
    for state in pool:
        operation = replace(state.operations[0], site=here)
        assert frames_or_source(graph, state.rank, operation, no_sources) == (here,)
    assert walks == RANKS
