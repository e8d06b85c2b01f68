"""Groups that the user makes one after another in one pool are each compared separately."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import CellError, DeadlockError, MismatchError
from tests.support.views import run_cell

#: Each takes the place of the one before; all begin with collective number 1.
OPERATIONS = [
    "t = torch.tensor([rank] * 4); dist.broadcast(t, 0)",
    "t = torch.ones(7); dist.all_reduce(t)",
    "dist.barrier(); t = torch.ones(1)",
    "found = [None] * 2; dist.all_gather_object(found, rank); t = torch.tensor(found)",
    "t = torch.ones(3, dtype=torch.int64); dist.all_reduce(t)",
    "t = torch.tensor([rank]); dist.send(t, 1) if rank == 0 else dist.recv(t, 0)",
    "t = torch.ones(9); dist.recv(t, 1) if rank == 0 else dist.send(t, 0)",
]
STORES = {
    "file": "dist.FileStore(f'{path}/file {round_}', 2)",
    "prefix": "dist.PrefixStore(f'round {round_}', dist.FileStore(f'{path}/one file', 2))",
    "tcp": (
        "tcp if round_ == 0 else dist.PrefixStore(f'round {round_}', tcp)\nassert store is not None"
    ),
}
_BEGIN = "dist.destroy_process_group()\n"
_INIT = "dist.init_process_group('gloo', store=store, rank=rank, world_size=2)\n"
_FREE_PORT = (
    "import socket\nwith socket.socket() as s: s.bind(('127.0.0.1', 0)); p = s.getsockname()[1]"
)
SUM = "t = torch.ones(1) * (rank + 1); dist.all_reduce(t); t.item()"


@pytest.fixture
def own_pool(pool: Pool, tmp_path: Path) -> Iterator[Pool]:
    """The shared pool; it gets its own default group again."""
    run_cell(pool, f"path = {str(tmp_path)!r}; round_ = 0")
    yield pool
    run_cell(
        pool,
        "if dist.is_initialized(): dist.destroy_process_group()\n"
        "dist.init_process_group('gloo'); store = tcp = None",
    )


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.replaces_group
def test_no_group_is_compared_with_one_that_is_gone(own_pool: Pool, kind: str):
    if kind == "tcp":
        run_cell(own_pool, _FREE_PORT, ranks="0")
        port = own_pool.pull("p", ranks=0)
        run_cell(own_pool, f"tcp = dist.TCPStore('127.0.0.1', {port}, 2, rank == 0)")
    for round_, operation in enumerate(OPERATIONS):
        cell = f"round_ = {round_}\n{_BEGIN}store = {STORES[kind]}\n{_INIT}{operation}\nt.tolist()"
        view = run_cell(own_pool, cell)
        assert view.result(0) == view.result(1)


@pytest.mark.replaces_group
def test_a_group_of_each_rank_alone(own_pool: Pool):
    """World size 1, as in a first attempt: each rank is rank 0 of its own world."""
    alone = f"{_BEGIN}dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)"
    for shape in ("rank + 1", "2 - rank"):
        cell = f"{alone}\nt = torch.ones({shape}); dist.all_reduce(t); dist.new_group([0]); len(t)"
        view = run_cell(own_pool, cell)
        assert {view.result(0), view.result(1)} == {"1", "2"}


@pytest.mark.replaces_group
def test_a_mismatch_in_a_group_of_the_user_is_told_and_the_group_repaired(own_pool: Pool):
    for round_ in range(2):
        run_cell(own_pool, f"{_BEGIN}store = dist.FileStore(f'{{path}}/{round_}', 2)\n{_INIT}")
        with pytest.raises(MismatchError, match=r"called (all_reduce|barrier)"):
            run_cell(own_pool, "dist.barrier() if rank else dist.all_reduce(torch.ones(1))")
        assert run_cell(own_pool, SUM).result(1) == "3.0"
        with pytest.raises(DeadlockError, match="Rank 1 never called all_reduce"):
            run_cell(own_pool, "if rank == 0: dist.all_reduce(torch.ones(1))")
        assert run_cell(own_pool, SUM).result(1) == "3.0"
        run_cell(own_pool, "g = dist.new_group(); dist.barrier(group=g)")
        with pytest.raises(
            DeadlockError, match="new_group for ranks 0-1 was never called by rank 1"
        ):
            run_cell(own_pool, "if rank == 0: dist.new_group()")
        assert run_cell(own_pool, SUM).result(1) == "3.0"


@pytest.mark.replaces_group
def test_a_second_group_that_one_rank_does_not_make(own_pool: Pool):
    """Its first group had the same name and members."""
    call = f"store = dist.FileStore(f'{{path}}/{{round_}}', 2)\n{_INIT}"
    run_cell(own_pool, f"{_BEGIN}{call}")
    run_cell(own_pool, _BEGIN)
    slow = call.replace("world_size=2", "world_size=2, timeout=timedelta(seconds=1)")
    code = f"from datetime import timedelta\nround_ = 1\nif rank == 1: raise SystemExit(0)\n{slow}"
    view = run_cell(own_pool, code, check=False)
    assert view.error is not None
    report = own_pool.last_report
    assert report is not None
    assert report.proven[0].headline.startswith(
        "init_process_group for ranks 0-1 was never called by rank 1"
    )


@pytest.mark.replaces_group
def test_a_group_with_a_process_that_is_no_rank(own_pool: Pool):
    """The group stays as torch makes it: nbddp cannot observe the other process."""
    child = (
        "import sys, torch, torch.distributed as dist\n"
        "store = dist.FileStore(sys.argv[1], 2)\n"
        "dist.init_process_group('gloo', store=store, rank=1, world_size=2)\n"
        "t = torch.ones(3); dist.all_reduce(t); dist.broadcast(t, 1)\n"
        "dist.destroy_process_group()\n"  # a thread of Gloo might end the process else
    )
    view = run_cell(
        own_pool,
        f"import subprocess, sys\n{_BEGIN}if rank == 0:\n"
        f"    child = subprocess.Popen([sys.executable, '-c', {child!r}, f'{{path}}/child'])\n"
        "    store = dist.FileStore(f'{path}/child', 2)\n"
        "    dist.init_process_group('gloo', store=store, rank=0, world_size=2)\n"
        "    t = torch.ones(3); dist.all_reduce(t); dist.broadcast(t, 1)\n"
        "    print(t.tolist(), child.wait(), type(dist.group.WORLD).__name__)\n"
        "    dist.destroy_process_group()\n",
    )
    assert view.texts() == {0: "[2.0, 2.0, 2.0] 0 ProcessGroup\n"}


def test_groups_with_hashed_names_one_after_another(pool: Pool):
    """The groups have the same name as the one before, and found its addresses in the store."""
    cell = (
        "g = dist.new_group([0, 1], use_local_synchronization=True)\n"
        "t = torch.ones(3 + {n}); dist.all_reduce(t, group=g)\n"
        "name = g.group_name; dist.destroy_process_group(g); del g\n"
    )
    names = set()
    for n in range(3):
        names.add(run_cell(pool, f"{cell.format(n=n)}{cell.format(n=7)}name").result())
    assert len(names) == 1


def test_hashed_names_agree_where_ranks_have_other_groups_beside(pool: Pool):
    """A failed cell leaves such groups; torch derives the names from the number of all groups."""
    with pytest.raises(CellError):
        run_cell(
            pool,
            "if rank == 0: own = dist.new_group([0], use_local_synchronization=True)\n"
            "raise ValueError",
        )
    cell = (
        "g = dist.new_group([0, 1], use_local_synchronization=True)\n"
        "h = dist.new_group([0, 1], use_local_synchronization=True)\n"
        "t = torch.ones(3); dist.all_reduce(t, group=g); dist.all_reduce(t, group=h)\n"
        "names = [g.group_name, h.group_name]; dist.destroy_process_group(g)\n"
        "g = dist.new_group([0, 1], use_local_synchronization=True)\n"
        "dist.all_reduce(t, group=g)\n"
        "for each in (g, h): dist.destroy_process_group(each)\n"
        "del g, h, each\n"
        "assert t.tolist() == [8.0, 8.0, 8.0] and names[0] != names[1]\n"
        "names"
    )
    for clean_up in ("", "if rank == 0: dist.destroy_process_group(own); del own\n"):
        view = run_cell(pool, clean_up + cell, timeout=20.0)
        assert view.result(0) == view.result(1)


@pytest.mark.full
@pytest.mark.fresh_ranks(4)
def test_a_mesh_of_a_program_that_is_run_again_is_its_own(pool: Pool):
    """DTensor takes equal meshes for the same one, and remembered the groups of the first run."""
    cell = (
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "from torch.distributed.tensor import Replicate, Shard, distribute_tensor\n"
        "mesh = init_device_mesh('cpu', (2, 2), mesh_dim_names=('dp', 'tp'))\n"
        "x = distribute_tensor(torch.ones(4, 4), mesh['tp'], [Shard(1)])\n"
        "y = x.sum(dim=1).redistribute(placements=[Replicate()]).to_local()\n"
        "for g in mesh.get_all_groups(): dist.destroy_process_group(g)\n"
        "del g, mesh, x\n"
        "y.tolist()"
    )
    for _ in range(3):
        assert run_cell(pool, cell, timeout=30.0).result() == "[4.0, 4.0, 4.0, 4.0]"


def test_two_groups_of_one_name_in_one_cell_have_nothing_in_common(pool: Pool):
    make = "dist.new_group([0, 1], use_local_synchronization=True)"
    cell = (
        f"g = {make}; one = g.counters.info.pg_id; dist.destroy_process_group(g); del g\n"
        f"g = {make}; two = g.counters.info.pg_id; dist.destroy_process_group(g); del g\n"
        "one == two"
    )
    assert run_cell(pool, cell).result() == "False"


@pytest.mark.fresh_ranks(3, init="none")
def test_a_world_of_some_ranks(pool: Pool, tmp_path: Path):
    """Its ranks are numbered differently; errors name the ranks of the pool."""
    init = (
        "if rank:\n"
        f"    store = dist.FileStore({str(tmp_path / 'store')!r}, 2)\n"
        "    dist.init_process_group('gloo', store=store, rank=2 - rank, world_size=2)\n"
        "    first = dist.new_group([0, 1]); last = dist.new_group([1])\n"
    )
    run_cell(pool, init)
    with pytest.raises(DeadlockError, match="Rank 1 never called all_reduce; rank 2 waits"):
        run_cell(pool, "if rank == 2: dist.all_reduce(torch.ones(2))")
    with pytest.raises(DeadlockError, match="Rank 2 never called barrier of group '1'"):
        run_cell(pool, "if rank == 1: dist.barrier(group=first)")
    with pytest.raises(DeadlockError, match="Rank 1 waits in recv from rank 2"):
        run_cell(pool, "if rank == 1: dist.recv(torch.ones(2), 0)")
    with pytest.raises(MismatchError, match=r"src=(1|2)"):
        run_cell(pool, "if rank: dist.broadcast(torch.ones(2), dist.get_rank())")
    sums = (
        "t = torch.ones(1) * rank\n"
        "if rank: dist.all_reduce(t, group=first); dist.all_reduce(t)\n"
        "if rank == 1: dist.all_reduce(t, group=last)\n"
        "t.item()"
    )
    view = run_cell(pool, sums)
    assert [view.result(rank) for rank in range(3)] == ["0.0", "6.0", "6.0"]
    run_cell(pool, "import os\nif rank == 1: os._exit(3)", check=False)
    view = run_cell(
        pool,
        "t = torch.ones(1) * rank\n"
        "if rank:\n"
        "    named = dist.distributed_c10d._resolve_process_group\n"
        "    dist.all_reduce(t, group=named('1')); dist.all_reduce(t)\n"
        "    found = dist.get_rank(), dist.get_process_group_ranks(named('1'))\n"
        "t.item()",
    )
    assert [view.result(rank) for rank in range(3)] == ["0.0", "6.0", "6.0"]
    assert pool.pull("found", ranks="1-2") == [(1, [0, 1]), (0, [0, 1])]


@pytest.mark.full
@pytest.mark.fresh_ranks(3, init="none")
def test_members_that_are_not_known_are_not_accused(pool: Pool, tmp_path: Path):
    """A rank waits for a world of two of the three ranks; the other member is not known."""
    view = run_cell(
        pool,
        "from datetime import timedelta\n"
        "if rank == 2:\n"
        f"    store = dist.FileStore({str(tmp_path / 'store')!r}, 2)\n"
        "    dist.init_process_group('gloo', store=store, rank=0, world_size=2, "
        "timeout=timedelta(seconds=1))",
        check=False,
    )
    assert view.error is not None
    report = pool.last_report
    assert report is not None
    finding = report.proven[0]
    assert (finding.kind, list(finding.culprits), list(finding.waiting)) == ("store-wait", [], [2])
    assert (
        "for 2 members: 1 has come, and no rank is left that could be another" in finding.headline
    )


@pytest.mark.full
@pytest.mark.fresh_ranks(1, nnodes=2)
def test_groups_of_the_user_on_two_nodes(pool: Pool, tmp_path: Path):
    for round_, operation in enumerate(OPERATIONS):
        store = f"store = dist.FileStore({str(tmp_path)!r} + '/{round_}', 2)\n"
        run_cell(pool, f"{_BEGIN}{store}{_INIT}{operation}")
        report = pool.last_report
        assert report is None or not report.findings


def test_a_group_that_not_all_ranks_would_count_is_refused(pool: Pool):
    """Otherwise the next group has another name on these ranks, and they wait forever."""
    view = run_cell(pool, "dist.new_group([0])", ranks=[0], check=False)
    text = str(view.error)
    assert "rank 0 called new_group, which all ranks of the default group have to call" in text
    assert "this cell runs on rank 0 only" in text
    assert "use_local_synchronization=True" in text
    made = "g = dist.new_group([0], use_local_synchronization=True)\ng.size()"
    assert run_cell(pool, made, ranks=[0]).result() == "1"
    assert run_cell(pool, "dist.destroy_process_group(g)", ranks=[0]).error is None
    names = run_cell(pool, "g = dist.new_group()\ndist.barrier(g)\ng.group_name")
    assert names.result(0) == names.result(1)


@pytest.mark.fresh_ranks(4)
def test_lists_without_a_common_member_are_refused(pool: Pool):
    """Both would be group 1 of torch: under torchrun their members read each other's addresses."""
    view = run_cell(pool, "g = dist.new_group([0, 1] if rank < 2 else [2, 3])", check=False)
    text = str(view.error)
    assert "new_group([0, 1])" in text
    assert "new_group([2, 3])" in text
    assert "make every group on all ranks" in text
    both = "a = dist.new_group([0, 1]); b = dist.new_group([2, 3])\n"
    total = (
        f"t = torch.tensor([rank]); dist.all_reduce(t, group={'a if rank < 2 else b'})\nt.item()"
    )
    view = run_cell(pool, both + total)
    assert [view.result(rank) for rank in range(4)] == ["1", "1", "5", "5"]
    hashed = "g = dist.new_group([0, 1] if rank < 2 else [2, 3], use_local_synchronization=True)\n"
    view = run_cell(pool, hashed + total.format("g"))
    assert [view.result(rank) for rank in range(4)] == ["1", "1", "5", "5"]


@pytest.mark.fresh_ranks(3)
def test_groups_that_ranks_number_differently(pool: Pool):
    """Torch numbers the groups of each rank: a group of some ranks only shifts all later ones."""
    run_cell(pool, "if rank == 0: alone = dist.new_group([0])", execution_count=7)
    view = run_cell(pool, "group = dist.new_group()", check=False, execution_count=8)
    assert isinstance(view.error, DeadlockError)
    report = pool.last_report
    assert report is not None
    (finding,) = report.proven
    assert finding.headline == (
        "new_group for ranks 0-2 is group 1 on ranks 1-2 and group 2 on rank 0, so its members "
        "wait for each other."
    )
    assert "Rank 0 made group 1 at cell [7], line 1" in finding.reason
    assert finding.suspicions == ()
    names = run_cell(pool, "group = dist.new_group()\ndist.barrier(group)\ngroup.group_name")
    assert names.result(0) == names.result(1) == names.result(2)
