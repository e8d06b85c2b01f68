"""Changes that share data between ranks: only where the syntax tree shows that they are right."""

import pytest

from nbddp.controller.diagnosis.control_flow import Code
from nbddp.controller.diagnosis.data_changes import has_sampler, with_sampler, with_set_epoch
from nbddp.wire.flight_recorder import Site

IMPORT = "from torch.utils.data import DistributedSampler"


def added(lines: object) -> list[str]:
    return [line.source for line in lines if line.change == "added"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "loader = DataLoader(data)",
            [IMPORT, "loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))"],
        ),
        (
            "loader = DataLoader(data, 4, shuffle=True, num_workers=2)",
            [
                IMPORT,
                "loader = DataLoader(data, 4, sampler=DistributedSampler(data), num_workers=2)",
            ],
        ),
        (
            "for x in torch.utils.data.DataLoader(data, batch_size=f(2)):  # batches\n    pass",
            [
                "for x in torch.utils.data.DataLoader(data, batch_size=f(2), "
                "sampler=torch.utils.data.DistributedSampler(data, shuffle=False)):  # batches"
            ],
        ),
        ('loader = DataLoader(datä, 2, collate_fn=g["ü"])', None),
    ],
)
def test_a_sampler(before: str, after: list[str] | None):
    found = added(with_sampler(Code(before), 1))
    if after is None:
        assert found[1].endswith('g["ü"], sampler=DistributedSampler(datä, shuffle=False))')
    else:
        assert found == after


@pytest.mark.parametrize(
    "code",
    [
        "loader = DataLoader(load(), 2)",
        "loader = DataLoader(data, 2, sampler=mine)",
        "loader = DataLoader(data, batch_sampler=mine)",
        "loader = DataLoader(data, **options)",
        "loader = DataLoader(data, 2, shuffle=is_training)",
        "loader = DataLoader(\n    data, 2)",
        "loader = DataLoader(*arguments)",
        "loader = make(data)",
        "loader = DataLoader(data, 2",
    ],
)
def test_no_sampler_where_the_call_is_not_simple(code: str):
    assert with_sampler(Code(code), 1) == ()


@pytest.mark.parametrize(
    ("cells", "is_known"),
    [
        (["from torch.utils.data import DataLoader, DistributedSampler", "", "x = 1"], True),
        (["from torch.utils.data import DataLoader", IMPORT, "x = 1"], True),
        ([IMPORT, "from torch.utils.data import DataLoader", "x = 1"], False),
        (["from torch.utils.data import DataLoader", "", "x = 1"], False),
        (["", IMPORT, "from torch.utils.data import DataLoader\nx = 1"], False),
        (["DataLoader = torch.utils.data.DataLoader", IMPORT, "x = 1"], False),
        (["", f"def f():\n    {IMPORT}", "x = 1"], False),
    ],
    ids=[
        "one statement",
        "behind",
        "before a restart, perhaps",
        "none",
        "here",
        "no import",
        "in a function",
    ],
)
def test_an_import_of_an_earlier_cell_is_known(cells: list[str], *, is_known: bool):
    def sources(site: Site) -> Code | None:
        return Code(cells[site.cell - 1])

    assert has_sampler(Site("", 1, "<module>", "", len(cells)), sources) == is_known
    found = added(with_sampler(Code("loader = DataLoader(data)"), 1, is_imported=is_known))
    assert (IMPORT in found) != is_known


def test_set_epoch_in_a_function():
    code = "def fit(n):\n    for e in range(n):\n        for x in tqdm(loader):\n            f(x)"
    assert added(with_set_epoch(Code(code), 3)) == ["        loader.sampler.set_epoch(e)"]


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("for x in loader:\n    f(x)", 1),
        ("for _ in range(3):\n    for x in loader:\n        f(x)", 2),
        ("for e in range(3):\n    for x in make():\n        f(x)", 2),
        ("for e in range(3):\n    if e:\n        for x in loader:\n            f(x)", 3),
        ("for e in range(3):\n    def g():\n        for x in loader:\n            f(x)", 3),
        ("for e in range(3):\n    batch_sampler = 1\n    for x in loader:\n        f(x)", 3),
        ("for e in range(3):\n    for x in loader:", 2),
    ],
)
def test_no_set_epoch_where_the_loops_are_not_simple(code: str, line: int):
    assert with_set_epoch(Code(code), line) == ()
