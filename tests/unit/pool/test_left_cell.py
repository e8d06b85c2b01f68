"""A cell that another notebook has begun: how the user waits for its end."""

from nbddp.controller.hub import Run
from nbddp.controller.pool.cell_options import CellOptions
from nbddp.controller.pool.cell_records import CellRecords
from nbddp.controller.pool.left_cell import LeftCell
from nbddp.controller.pool.source_texts import SourceTexts
from nbddp.wire.messages import Execute
from nbddp.wire.rank_set import RankSet


def test_the_advice_does_not_name_an_output_of_another_notebook():
    cells, ranks = CellRecords(is_attached=True), RankSet.all(2)
    execute = Execute(run_id="a-1", code="1", execution_count=3, first_line=1)
    left = LeftCell(Run("a-1", ranks, 0), execute, began=0.0)
    left.note(cells, SourceTexts())
    assert cells.last_name == "cell [3]"
    assert cells.how_to_wait == "nbddp.pool().rejoin()"
    left.how_to_wait = lambda: "Out[2].wait()"
    assert cells.how_to_wait == "Out[2].wait()"
    options = CellOptions(ranks=ranks, execution_count=5, cell_name="cell [5]")
    cells.begin(Run("b-1", ranks, 0), "2", options)
    assert cells.how_to_wait == "Out[5].wait() if it has --async"
