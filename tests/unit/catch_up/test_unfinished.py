"""The cells that failed when they ran again, and those that have used what these make."""

from collections.abc import Mapping

import pytest

from nbddp.controller.catch_up import PastCell, Unfinished
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values.value_questions import NameKind

LOAD = "import numpy as np\nwork = []\nwork.append(np.load(path))"


def unfinished(codes: Mapping[int, str], failed: set[int], **kinds: NameKind) -> Unfinished:
    ranks = RankSet.of([0, 1])
    cells = [PastCell(number, code, 1, ranks, is_ok=True) for number, code in codes.items()]
    return Unfinished(cells, failed, {"np": "definition", **kinds})


def test_a_cell_that_uses_a_name_of_one_that_failed():
    cells = {1: LOAD, 2: "y = len(work)", 3: "z = np.ones(2)", 4: "w = y + 1"}
    found = unfinished(cells, {1})
    assert found.cells == {1, 2, 4}
    assert found.cell_by_name == {"work": 1, "y": 1, "w": 1}
    assert found.names == {"work", "y", "w"}


def test_a_name_that_is_made_anew_is_well():
    cells = {1: LOAD, 2: "work = [1]", 3: "y = len(work)", 4: "bad()"}
    found = unfinished(cells, {1, 4})
    assert found.cells == {1, 4}
    assert found.cell_by_name == {}


@pytest.mark.parametrize(("kind", "names"), [("plain", {"kept", "x"}), ("state", {"x"})])
def test_a_value_that_a_method_may_have_changed_unless_it_gets_a_state(
    kind: NameKind, names: set[str]
):
    found = unfinished({1: "x = 1\nkept.step()\nopen(path)"}, {1}, kept=kind)
    assert found.names == names


def test_without_a_cell_that_failed_nothing_is_unfinished():
    found = unfinished({1: LOAD, 2: "y = len(work)"}, set())
    assert (found.cells, found.cell_by_name) == (frozenset(), {})


def test_names_come_in_the_order_of_their_cells_and_of_the_alphabet():
    cells = unfinished({1: "z = y = 1\nb = 2", 2: "a = z"}, {1})
    assert [*cells.cell_by_name] == ["b", "y", "z", "a"]
