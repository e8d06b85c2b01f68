"""The hint of a NameError where fresh ranks lack modules, optimizers and schedulers."""

import pytest

from nbddp.controller.catch_up import CellHistory
from nbddp.controller.state import LeftOut, Reason
from nbddp.wire.rank_set import RankSet
from tests.support.cell_errors import cell_error, ok, raised, text

ONE = RankSet.of([1])


@pytest.mark.parametrize("name", ["net", "opt", "sched"])
@pytest.mark.parametrize("reason", [Reason.NO_CELL_SINCE_ATTACH, Reason.NO_CELL, Reason.FAILED])
def test_all_objects_with_a_state_are_made_and_get_their_states(name: str, reason: Reason):
    history = CellHistory()
    names = ("nn", "net", "opt", "sched", "l")
    states = frozenset(("net", "opt", "sched"))
    left = LeftOut(names, reason, 3, with_state=states, definitions=frozenset(("nn",)))
    history.note_left_out(ONE, [left])
    lacks = raised(1, "NameError", f"name '{name}' is not defined", name=name)
    message = text(cell_error(ok(0), lacks, replacements=ONE, origins=history))
    assert message.endswith(
        "\n  next      run the lines that make net, opt and sched in a cell that begins with %%ddp "
        "-r 1, then nbddp.sync(net, opt, sched, src=0) in one on all ranks"
    )
