"""``%%ddp --sanitize data`` on real ranks: data that are shared wrongly are told, and no others."""

import pytest

from nbddp.controller.diagnosis import Finding
from nbddp.controller.pool.pool import Pool
from nbddp.notebook.output.sanitizer_lines import sanitizer_lines
from tests.cases.data_shared_on_purpose import SHARED_ON_PURPOSE
from tests.cases.sanitized import WrongCell
from tests.cases.sanitized_data import CORRECT_DATA, DATA_PRELUDE, WRONG_DATA
from tests.cases.sanitized_orders import CORRECT_ORDERS, WRONG_ORDERS
from tests.support.sanitizer_findings import check_only_finding, findings
from tests.support.views import RecordingView, run_cell


@pytest.fixture(autouse=True)
def _prelude(pool: Pool) -> None:
    run_cell(pool, DATA_PRELUDE)


def _each(cells: list[WrongCell]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("cell", cells, ids=lambda cell: cell.name)


def lines(view: RecordingView) -> list[str]:
    assert view.outcome is not None
    return sanitizer_lines(view.outcome)


@_each(WRONG_DATA + WRONG_ORDERS)
def test_a_fault_is_told_with_its_lines(pool: Pool, cell: WrongCell):
    check_only_finding(run_cell(pool, cell.code, sanitize_data=True), cell)


@_each(WRONG_DATA + WRONG_ORDERS)
def test_the_fixed_cell_is_silent(pool: Pool, cell: WrongCell):
    assert findings(run_cell(pool, cell.fixed, sanitize_data=True)) == []


@_each(WRONG_DATA[:1])
def test_without_the_option_nothing_is_told(pool: Pool, cell: WrongCell):
    for sanitize in (False, True):
        assert findings(run_cell(pool, cell.code, sanitize=sanitize)) == []


_CORRECT = CORRECT_DATA | CORRECT_ORDERS | SHARED_ON_PURPOSE


@pytest.mark.parametrize("name", _CORRECT)
def test_a_correct_cell_has_no_card_and_few_notes(pool: Pool, name: str):
    code, notes = _CORRECT[name]
    view = run_cell(pool, code, sanitize_data=True)
    assert [finding.headline for finding in findings(view)] == []
    told = lines(view)
    assert len(told) == len(notes), told
    assert all(word in line for word, line in zip(notes, told, strict=True)), told


def _change(finding: Finding) -> list[tuple[str, str]]:
    assert finding.change is not None
    return [(line.change, line.source) for line in finding.change.lines]


def test_a_sampler_is_suggested(pool: Pool):
    code = "loader = DataLoader(data, batch_size=2, shuffle=True)\nfor b in loader: fit(b)\n"
    (finding,) = findings(run_cell(pool, code, sanitize_data=True))
    assert _change(finding) == [
        ("removed", "loader = DataLoader(data, batch_size=2, shuffle=True)"),
        ("added", "from torch.utils.data import DistributedSampler"),
        ("added", "loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data))"),
    ]
    changed = "\n".join(text for change, text in _change(finding) if change == "added")
    assert findings(run_cell(pool, f"{changed}\nfor b in loader: fit(b)", sanitize_data=True)) == []


def test_set_epoch_is_suggested(pool: Pool):
    (cell,) = (each for each in WRONG_DATA if each.name == "set_epoch forgotten")
    (finding,) = findings(run_cell(pool, cell.code, sanitize_data=True))
    assert _change(finding) == [
        ("same", "for epoch in range(3):"),
        ("added", "    loader.sampler.set_epoch(epoch)"),
        ("same", "    for batch in loader:"),
    ]


def test_a_loader_of_an_earlier_cell_is_told_by_the_line_of_its_loop(pool: Pool):
    run_cell(pool, "loader = DataLoader(data, batch_size=2)")
    view = run_cell(pool, "for batch in loader: fit(batch)", sanitize_data=True)
    (finding,) = findings(view)
    assert [line.site.source for line in finding.code] == ["for batch in loader: fit(batch)"]
    assert finding.change is None


def test_a_rank_without_data_is_told_beside_the_deadlock(pool: Pool):
    code = "part = Subset(data, range(rank, 9, 2))\nfor batch in DataLoader(part, 1): fit(batch)\n"
    found = findings(run_cell(pool, code, sanitize_data=True, check=False))
    assert [finding.kind for finding in found] == ["missing-rank", "uneven-batches"]
    assert found[1].proven
    assert "Rank 1 got 4 batches, rank 0 got 5 batches" in found[1].headline
    assert "join" not in found[1].next_step


def test_uneven_data_of_equally_many_steps_may_be_meant(pool: Pool):
    code = (
        "from itertools import cycle, islice\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))\n"
        "part = Subset(data, range(rank, 9, 2))\n"
        "for batch in islice(cycle(DataLoader(part, 1)), 6): model(batch[0]).sum().backward()\n"
    )
    (finding,) = findings(run_cell(pool, code, sanitize_data=True))
    assert (finding.kind, finding.proven) == ("uneven-batches", False)
    assert finding.next_step == (
        "If this is meant, and all ranks make equally many steps, nothing is wrong. Otherwise: a "
        "`DistributedSampler` gives all ranks equally much; with data of their own, use "
        "`with model.join():`."
    )


def test_join_is_advised_for_ddp_alone(pool: Pool):
    code = (
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))\n"
        "part = Subset(data, range(rank, 9, 2))\n"
        "for batch in DataLoader(part, 1): model(batch[0]).sum().backward()\n"
    )
    found = findings(run_cell(pool, code, sanitize_data=True, check=False))
    assert found[-1].kind == "uneven-batches"
    assert "with model.join():" in found[-1].next_step


def test_a_cell_leaves_torch_as_it_was(pool: Pool):
    names = (
        "(DataLoader.__init__, DataLoader.__iter__, DistributedSampler.__init__, "
        "torch.utils.data.dataloader._BaseDataLoaderIter.__next__)"
    )
    run_cell(pool, f"before = {names}")
    run_cell(pool, WRONG_DATA[0].code, sanitize_data=True)
    run_cell(pool, f"assert before == {names}")


def test_checks_after_the_code_are_told_apart_from_the_time_of_the_cell(pool: Pool):
    outcome = run_cell(pool, WRONG_DATA[0].code, sanitize_data=True).outcome
    assert outcome is not None
    for result in outcome.results.values():
        report = result.sanitizer
        assert report is not None
        assert 0 < report.after_ns <= report.spent_ns
        assert report.spent_ns - report.after_ns <= result.elapsed_s * 1e9


def test_there_are_enough_cells():
    assert len(CORRECT_DATA) >= 12
    assert len(WRONG_DATA) >= 8
