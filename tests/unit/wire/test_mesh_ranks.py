"""Ranks chosen by dimensions of a DeviceMesh."""

from collections.abc import Iterable, Sequence

import pytest

from nbddp.errors import BadOptionError
from nbddp.wire.mesh_ranks import Mesh, mesh_names, offers, read_ranks


def mesh(
    name: str, shape: Sequence[int], *dims: str, ranks: Sequence[int] = (), made: int = 1
) -> Mesh:
    count = 1
    for size in shape:
        count *= size
    listed = tuple(ranks or range(count))
    return Mesh(name=name, dims=dims, shape=tuple(shape), ranks=listed, made_ns=made)


GRID = mesh("grid", (2, 4), "dp", "tp")


def on_ranks(ranks: Iterable[int], *meshes: Mesh) -> dict[int, Sequence[Mesh]]:
    """Each of these ranks has reported these meshes."""
    return dict.fromkeys(ranks, meshes)


GRIDS = on_ranks(range(8), GRID)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("tp=0", "0,4"),
        ("tp=-1", "3,7"),
        ("dp=1", "4-7"),
        ("dp=0,tp=1:3", "1-2"),
        (" dp = 1 , tp = 2 ", "6"),
        ("tp=:2", "0-1,4-5"),
        ("tp=2:", "2-3,6-7"),
        ("tp=::2", "0,2,4,6"),
        ("tp=::-3", "0,3-4,7"),
        ("tp=1:9", "1-3,5-7"),  # a slice may end behind the last index, as in Python
        ("grid[tp=0]", "0,4"),
        ("grid[]", "0-7"),
        ("0,2-3", "0,2-3"),
        ("all", "0-7"),
    ],
)
def test_a_choice(text: str, ranks: str):
    assert str(read_ranks(text, 8, GRIDS)) == ranks


_LEGAL = "grid (dp=0 to dp=1, tp=0 to tp=3)"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("pp=0", f"no DeviceMesh has the dimension pp; legal: {_LEGAL}"),
        ("pp=0,tp=1", f"no DeviceMesh has the dimensions pp and tp; legal: {_LEGAL}"),
        ("grid[pp=0]", f"mesh grid has no dimension pp; legal: {_LEGAL}"),
        ("grit[tp=0]", f"no variable 'grit' of the ranks holds a DeviceMesh; legal: {_LEGAL}"),
        ("tp=4", f"tp=4 is no index of mesh {_LEGAL}; legal: tp=0 to tp=3, or a slice such as"),
        ("tp=-5", f"tp=-5 is no index of mesh {_LEGAL}"),
        ("tp=x", f"tp=x is no index of mesh {_LEGAL}"),
        ("tp=1:2:0", f"tp=1:2:0 is no index of mesh {_LEGAL}"),
        ("tp=1:2:1:1", f"tp=1:2:1:1 is no index of mesh {_LEGAL}"),
        ("tp=\u0663", "tp=\u0663 is no index of"),  # a digit, but not an ASCII one
        ("tp=2:1", f"'tp=2:1' chooses no rank of mesh {_LEGAL}"),
        ("tp=0,1", "'1' in 'tp=0,1' is no index of a dimension; legal: tp=0, or a slice tp=1:3"),
        ("tp=", "'tp=' in 'tp=' is no index of a dimension"),
        ("tp=0,tp=1", "'tp=0,tp=1' has tp twice. Next: a slice such as tp=0:2"),
        ("grid[0,2]", "'0' in '0,2' is no index of a dimension"),
        ("grid[tp=0", "no DeviceMesh has the dimension grid[tp; legal:"),
        ("9", "rank 9 is out of range in a pool of 8 ranks"),
    ],
)
def test_a_wrong_choice_lists_what_is_legal(text: str, wrong: str):
    with pytest.raises(BadOptionError) as caught:
        read_ranks(text, 8, GRIDS)
    assert str(caught.value).startswith(wrong)


@pytest.mark.parametrize("text", ["tp=0", "grid[tp=0]", "grid[]"])
def test_without_a_mesh_it_is_said_what_to_do(text: str):
    with pytest.raises(BadOptionError, match=r"no variable of the ranks holds one.*Next: mesh = "):
        read_ranks(text, 4, {0: [], 1: []})


def test_the_latest_mesh_with_all_of_the_dimensions_is_meant():
    old, new = mesh("old", (2, 4), "dp", "tp"), mesh("new", (4, 2), "ep", "tp", made=2)
    meshes = on_ranks(range(8), old, new)
    assert str(read_ranks("tp=1", 8, meshes)) == "1,3,5,7"
    assert str(read_ranks("dp=0,tp=1", 8, meshes)) == "1"
    assert str(read_ranks("old[tp=1]", 8, meshes)) == "1,5"
    assert mesh_names(meshes) == ["new", "old"]


def test_slices_of_all_ranks_are_put_together():
    """``mesh["tp"]`` has the ranks 0-1 on rank 0, and 2-3 on rank 2."""
    meshes = {
        rank: [mesh("tp", (2,), "tp", ranks=(rank // 2 * 2, rank // 2 * 2 + 1), made=rank)]
        for rank in range(4)
    }
    assert str(read_ranks("tp=0", 4, meshes)) == "0,2"


def test_a_fresh_rank_keeps_its_place_in_the_mesh_of_the_others():
    assert str(read_ranks("tp=0", 8, GRIDS | {4: []})) == "0,4"


def test_a_mesh_that_few_ranks_still_have_does_not_change_the_newer_one():
    newer = mesh("grid", (4, 2), "dp", "tp", made=2)
    meshes = GRIDS | on_ranks(range(1, 8), newer)
    assert str(read_ranks("tp=0", 8, meshes)) == "0,2,4,6"


def test_a_mesh_without_names_is_chosen_as_a_whole():
    meshes = {0: [mesh("plain", (2,), ranks=(1, 3))]}
    assert str(read_ranks("plain[]", 4, meshes)) == "1,3"
    with pytest.raises(BadOptionError, match=r"legal: plain \(its dimensions have no names\)"):
        read_ranks("plain[tp=0]", 4, meshes)


def test_tab_offers_dimensions_and_indices():
    other = mesh("other", (8,), "ep", made=0)
    meshes = on_ranks(range(8), GRID, other)
    assert list(offers("", meshes)) == ["dp=", "tp=", "ep="]
    assert list(offers("dp=0,t", meshes)) == ["dp=0,tp="]
    assert list(offers("dp=", meshes, "grid")) == ["dp=0", "dp=1", "tp="]
    assert list(offers("", meshes, "other")) == ["ep="]
