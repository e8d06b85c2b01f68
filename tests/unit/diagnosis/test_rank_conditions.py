"""Conditions about ranks have a value; conditions about other things have none."""

import ast

import pytest

from nbddp.controller.diagnosis.rank_conditions import holds


@pytest.mark.parametrize(
    ("test", "values"),
    [
        ("rank == 0", [True, False, False]),
        ("rank", [False, True, True]),
        ("not rank", [True, False, False]),
        ("rank % 2", [False, True, False]),
        ("rank < world_size - 1", [True, True, False]),
        ("0 < rank < 2", [False, True, False]),
        ("rank in (1, 2)", [False, True, True]),
        ("rank not in [1, 2]", [True, False, False]),
        ("rank in range(1, 3)", [False, True, True]),
        ("dist.get_rank() == 1", [False, True, False]),
        ("torch.distributed.get_rank() != get_world_size() - 1", [True, True, False]),
        ("rank == 2 and step == 1", [False, False, None]),
        ("rank == 2 or ready", [None, None, True]),
        ("ready and rank == 2", [False, False, None]),
        ("rank >= 0 and True", [True, True, True]),
        ("rank == -1", [False, False, False]),
        ("rank // 0", [None, None, None]),
        ("rank is 0", [None, None, None]),
        ("rank == x", [None, None, None]),
        ("local_rank == 0", [None, None, None]),
        ("is_main()", [None, None, None]),
        ("dist.get_rank(group) == 0", [None, None, None]),
        ("rank ** 99999999", [None, None, None]),
        ("rank + 'a'", [None, None, None]),
        ("range(rank, 'a')", [None, None, None]),
        ("(lambda: rank)()", [None, None, None]),
    ],
)
def test_values(test: str, values: list[bool | None]):
    tree = ast.parse(test, mode="eval").body
    assert [holds(tree, rank, 3) for rank in range(3)] == values


def test_no_condition():
    assert holds(None, 0, 1) is None
