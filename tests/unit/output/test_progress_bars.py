"""Progress bars of several ranks, while a cell runs."""

from nbddp.notebook.output.progress_bars import arranged
from nbddp.wire.rank_set import RankSet


def bar(done: int, rate: float = 2.5, name: str = "") -> str:
    return f"{name}{done:3d}%|{'█' * (done // 10):10}| {done}/100 [00:01<00:02, {rate:5.2f}it/s]"


def rows(*lines: tuple[list[int], str]) -> list[tuple[str, str, str]]:
    return [
        (row.ranks.describe(), row.word, row.text)
        for row in arranged([(RankSet.of(ranks), text) for ranks, text in lines])
    ]


def test_each_rank_has_a_row_in_rank_order():
    assert rows(([1, 3], bar(40)), ([0], bar(50)), ([2], bar(40, 2.6))) == [
        ("rank 0", "", bar(50)),
        ("rank 1", "", bar(40)),
        ("rank 2", "", bar(40, 2.6)),
        ("rank 3", "", bar(40)),
    ]


def test_of_many_ranks_there_are_three():
    lines = [([rank], bar(30 + rank % 7, rank)) for rank in range(16)]
    assert rows(*lines) == [
        ("rank 0", "slowest", bar(30, 0)),
        ("rank 9", "median", bar(32, 9)),
        ("rank 13", "fastest", bar(36, 13)),
    ]


def test_bars_with_other_names_are_other_bars():
    lines = [
        ([0], bar(50, name="epoch: ")),
        ([1], bar(40, name="epoch: ")),
        ([0], bar(7, name="step: ")),
        ([1], bar(9, name="step: ")),
    ]
    assert [(who, text.split(":")[0]) for who, _, text in rows(*lines)] == [
        ("rank 0", "epoch"),
        ("rank 1", "epoch"),
        ("rank 0", "step"),
        ("rank 1", "step"),
    ]


def test_other_lines_stay():
    lines = [([0, 1], "Password: "), ([0], bar(1)), ([1], bar(2)), ([1], "50% of |x| 1/2")]
    assert [text for *_, text in rows(*lines)] == [
        "Password: ",
        bar(1),
        bar(2),
        "50% of |x| 1/2",
    ]


def test_units():
    lines = [([rank], f" 12%|█         | {rank}.5M/{20}M [00:00<00:01]") for rank in range(9)]
    assert [word for _, word, _ in rows(*lines)] == ["slowest", "median", "fastest"]
