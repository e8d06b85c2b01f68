"""Ranks chosen by dimensions of meshes that cells create, on four real ranks."""

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import BadOptionError
from tests.support.views import run_cell

_MESH = """\
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
"""


@pytest.mark.fresh_ranks(4)
def test_the_life_of_a_mesh(pool: Pool):
    with pytest.raises(BadOptionError, match="no variable of the ranks holds one"):
        pool.run("rank", ranks="tp=0")
    run_cell(pool, _MESH)
    assert sorted(run_cell(pool, "rank", ranks="tp=0").outcome.results) == [0, 2]  # type: ignore[union-attr]
    assert pool.pull("rank", ranks="dp=1,tp=0:2") == [2, 3]
    pool.push(here=True, ranks="dp=0,tp=1")
    assert pool.pull("'here' in globals()") == [False, True, False, False]
    assert pool.diff("rank", ranks="tp=1").differences
    # A slice and a flattened mesh are meshes, too. The latest that has the dimension is meant.
    run_cell(pool, "tp = mesh['tp']\nflat = mesh['dp', 'tp']._flatten('world')")
    assert str(pool.rank_set("tp[tp=1]")) == "1,3"
    assert str(pool.rank_set("world=1:3")) == "1-2"
    assert str(pool.rank_set("dp=0")) == "0-1"
    # It was created later, and bound to a name that is older.
    run_cell(
        pool, "late = mesh\nmesh = init_device_mesh('cpu', (4, 1), mesh_dim_names=('dp', 'tp'))"
    )
    assert str(pool.rank_set("dp=3")) == "3"
    assert str(pool.rank_set("late[dp=1]")) == "2-3"
    # A fresh rank has no variable, and the mesh of the others names its place.
    pool.restart("dp=3")
    assert str(pool.rank_set("late[dp=1,tp=1]")) == "3"
    run_cell(pool, "del mesh, late, tp, flat", ranks="0-2")
    with pytest.raises(BadOptionError, match="no variable of the ranks holds one"):
        pool.rank_set("dp=0")
    run_cell(pool, _MESH)
    pool.restart()
    with pytest.raises(BadOptionError, match="no variable of the ranks holds one"):
        pool.rank_set("dp=0")


@pytest.mark.fresh_ranks(2, init="none")
def test_ranks_that_the_user_has_numbered(pool: Pool):
    """A mesh counts ranks of the default group; ``-r`` takes those of the pool."""
    code = "dist.init_process_group('gloo', rank=1 - rank, world_size=2)\n"
    run_cell(pool, code + _MESH.replace("(2, 2)", "(2, 1)"))
    assert pool.pull("mesh.get_local_rank('dp')", ranks="dp=0") == [0]
    assert str(pool.rank_set("dp=0")) == "1"


@pytest.mark.full
@pytest.mark.fresh_ranks(2, plain=True)
def test_a_cell_that_fails_has_made_its_mesh_and_a_plain_pool_knows_it(
    pool: Pool,
):
    run_cell(pool, _MESH.replace("(2, 2)", "(1, 2)") + "1 / 0", check=False)
    assert str(pool.rank_set("tp=1")) == "1"
