"""The table of ``%ddp vars``: equal values are one row, and an odd rank has its own."""

from nbddp.notebook.render import variables_table
from nbddp.wire.values.value_questions import Variable, Variables


def told(*values: str | None) -> dict[int, Variables]:
    return {
        rank: Variables(
            variables=() if value is None else (Variable("x", "int", value=value, digest=value),)
        )
        for rank, value in enumerate(values)
    }


def table(*values: str | None) -> list[list[str]]:
    text = variables_table.bundle(told(*values), ("x",))["text/plain"]
    return [line.split() for line in text.splitlines()[1:]]


def test_equal_values_are_one_row():
    assert table("3", "3", "3") == [["x", "all", "int", "3"]]


def test_the_odd_rank_has_a_row_of_its_own():
    assert table("3", "4", "3") == [["x", "0,2", "int", "3"], ["1", "int", "4"]]
    html = variables_table.bundle(told("3", "4", "3"), ("x",))["text/html"]
    assert "<b>4</b>" in html
    assert "<b>3</b>" not in html


def test_no_rank_is_odd_where_all_differ():
    assert "<b>" not in variables_table.bundle(told("1", "2", "3"), ("x",))["text/html"]
    assert len(table(*map(str, range(64)))) == 7
    assert table(*map(str, range(64)))[-1] == ["and", "58", "more", "ranks"]


def test_a_name_that_some_ranks_do_not_have():
    assert table("3", None, "3") == [["x", "0,2", "int", "3"], ["1", "not", "there"]]


def test_values_that_cannot_be_compared_are_not_called_different():
    meta = Variable("m", "Tensor", shape="(3,)", device="meta")
    text = variables_table.bundle({rank: Variables(variables=(meta,)) for rank in range(3)}, ("m",))
    assert "(not compared)" in text["text/plain"]
    assert "all" in text["text/plain"]


def test_values_that_look_alike_and_are_not():
    found = {
        rank: Variables(variables=(Variable("m", "Linear", value="train", digest=str(rank == 1)),))
        for rank in range(3)
    }
    text = variables_table.bundle(found, ("m",))["text/plain"]
    assert "other values than on ranks 0,2" in text


def test_vars_of_some_ranks_name_these():
    """Ranks that were not asked may have other values."""
    asked = {rank: each for rank, each in told("3", "4", "3").items() if rank != 1}
    lines = variables_table.bundle(asked, ("x",), 4)["text/plain"].splitlines()
    assert lines[1].split() == ["x", "0,2", "int", "3"]
    assert "all" in variables_table.bundle(asked, ("x",), 2)["text/plain"]
