"""Programs about process groups: their names, creation and end. See `tests.cases.fidelity`."""

from tests.cases.fidelity import Program

GROUPS = [
    Program(
        "names",
        """
world = dist.group.WORLD
result = [
    dist.get_backend(), str(dist.get_backend_config()), dist.get_world_size(), dist.get_rank(),
    dist.get_process_group_ranks(world), world.rank(), world.size(), world.name(),
    world.group_name, world.group_desc, world._get_backend_name(), dist.get_pg_count(),
    str(world._device_types), str(world.bound_device_id), isinstance(world, dist.ProcessGroup),
    c10d._get_process_group_name(world), c10d._get_group_tag(world), c10d._world.pg_names[world],
    c10d._resolve_process_group(world.group_name) is world, dist.is_initialized(),
    type(world._get_backend(torch.device("cpu"))).__name__, str(c10d._get_pg_config()),
    str(c10d._get_pg_default_device(world)), c10d._device_capability(world),
    c10d._get_object_coll_device(world), world._has_hooks(), dist.get_node_local_rank(0),
    c10d._find_pg_by_ranks_and_tag("", [0, 1]) is world,
    type(world._get_backend(torch.device("cuda"))).__name__, str(c10d._world.pg_map[world][0]),
    dist.get_group_rank(world, 1), dist.get_global_rank(world, 0),
    attempt(lambda: type(world.get_group_store()).__name__), dist.get_debug_level().name,
    c10d._get_all_pg_configs(), dist.new_group().group_desc, dist.new_group([0, 1]).name(),
]
""",
    ),
    Program(
        "sequence numbers",
        """
before = dist.group.WORLD._get_sequence_number_for_group()
for _ in range(3):
    dist.all_reduce(torch.ones(1))
result = dist.group.WORLD._get_sequence_number_for_group() - before
""",
    ),
    Program(
        "new_group",
        """
result = []
for ranks in (None, [0, 1, 2, 3], [1, 3], [3, 0], [2]):
    group = dist.new_group(ranks, group_desc=f"of {ranks}", timeout=timedelta(seconds=20))
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        result.append(("not in", dist.get_rank(group), dist.get_world_size(group)))
        continue
    t = torch.tensor([rank + 1.0])
    dist.all_reduce(t, group=group)
    result.append([
        t.item(), group.group_name, group.group_desc, dist.get_backend(group), group.rank(),
        dist.get_process_group_ranks(group), dist.get_world_size(group), dist.get_rank(group),
        dist.get_group_rank(group, rank), dist.get_global_rank(group, group.rank()),
        c10d._get_group_tag(group), str(dist.get_backend_config(group)),
    ])
result.append(dist.get_pg_count())
""",
        ranks=4,
        is_long=True,
    ),
    Program(
        "new_group by members only",
        """
group = None
if rank in (1, 2):
    group = dist.new_group([1, 2], use_local_synchronization=True)
    t = torch.tensor([rank + 1.0])
    dist.all_reduce(t, group=group)
    result = [t.item(), dist.get_process_group_ranks(group)]
else:
    result = "not called"
dist.barrier()
""",
        ranks=4,
    ),
    Program(
        "groups inside of groups",
        """
lower = dist.new_group([0, 1, 2])
lowest = dist.new_group([1, 2])
other = dist.new_group([0, 3])
result = []
for group in (lower, lowest, other, dist.group.WORLD):
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        t = torch.tensor([rank + 1.0])
        works = [dist.all_reduce(t, group=group, async_op=True)]
        for work in works:
            work.wait()
        result.append((group.group_name, t.item()))
""",
        ranks=4,
    ),
    Program(
        "new_subgroups",
        """
own, subgroups = dist.new_subgroups(2)
t = torch.tensor([rank + 1.0])
dist.all_reduce(t, group=own)
pair, pairs = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
u = torch.tensor([rank + 1.0])
dist.all_reduce(u, group=pair)
result = [t.item(), u.item(), len(subgroups), len(pairs), own in subgroups, pair.group_name,
          attempt(dist.new_subgroups, 3)]
""",
        ranks=4,
    ),
    Program(
        "destroy a sub-group",
        """
group = dist.new_group()
same_name = group.group_name
dist.all_reduce(torch.ones(1), group=group)
dist.destroy_process_group(group)
result = [
    attempt(dist.all_reduce, torch.ones(1), group=group), attempt(dist.get_backend, group),
    attempt(dist.get_rank, group), attempt(dist.destroy_process_group, group),
    attempt(c10d._resolve_process_group, same_name), dist.get_pg_count(),
]
t = torch.tensor([rank + 1.0])
dist.all_reduce(t)
result.append(t.item())
""",
    ),
    Program(
        "destroy all, init again",
        """
def init(url, **kwargs):
    dist.init_process_group("gloo", init_method=url, **kwargs)
    t = torch.tensor([rank + 1.0])
    dist.all_reduce(t)
    group = dist.new_group([0, 1])
    dist.all_reduce(t, group=group)
    found = [t.item(), dist.group.WORLD.group_name, group.group_name, dist.get_backend()]
    dist.destroy_process_group()
    return found

path = shared_path("store")
own = {"rank": rank, "world_size": world_size}
address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
dist.destroy_process_group()
result = [
    dist.is_initialized(), attempt(dist.all_reduce, torch.ones(1)), attempt(dist.get_rank),
    init("env://"), init("env://"), init(f"tcp://{address}", **own), init(f"file://{path}", **own),
    attempt(init, "nowhere://"), attempt(init, "env://", rank=5, world_size=2, store=None),
]
store = dist.PrefixStore("own", dist.FileStore(path + "2", world_size))
dist.init_process_group("cpu:gloo", store=store, timeout=timedelta(seconds=30), **own)
t = torch.tensor([rank + 1.0])
dist.all_reduce(t)
result += [t.item(), dist.get_backend(), str(dist.get_backend_config())]
dist.barrier()
dist.destroy_process_group()
dist.init_process_group("gloo")
result += [attempt(dist.init_process_group, "gloo"), dist.group.WORLD.group_name]
""",
    ),
    Program(
        "split_group",
        """
result = [
    attempt(dist.split_group, None, [[0, 1]]),
    attempt(dist.split_group, dist.group.WORLD, [[0], [1]]),
    attempt(dist.split_group, None, [[0, 0]]),
]
""",
    ),
    Program(
        "timeout of a group",
        """
group = dist.new_group(timeout=timedelta(milliseconds=300))
if rank == 0:
    try:
        dist.recv(torch.zeros(1), src=1, group=group)
        result = "received"
    except Exception as error:
        result = type(error).__name__
else:
    result = "nothing sent"
dist.barrier()
""",
    ),
    Program(
        "timeout of a wait",
        """
group = dist.new_group()
if rank == 0:
    work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
    result = [attempt(work.wait, timedelta(milliseconds=200)), work.is_completed()]
else:
    time.sleep(0.6)
    dist.all_reduce(torch.ones(1), group=group)
    result = ["late"]
""",
    ),
    Program(
        "monitored_barrier",
        """
group = dist.new_group()
dist.monitored_barrier(timeout=timedelta(seconds=20))
dist.monitored_barrier(wait_all_ranks=True)
result = []
if rank == 0:
    result.append(attempt(dist.monitored_barrier, group, timedelta(milliseconds=300)))
dist.monitored_barrier()
other = dist.new_group()
if rank == 0:
    result.append(attempt(dist.monitored_barrier, other, timedelta(milliseconds=300), True))
dist.barrier()
""",
    ),
    Program(
        "timeouts are set",
        """
group = dist.new_group()
c10d._set_pg_timeout(timedelta(milliseconds=250), group)
result = []
if rank == 0:
    try:
        dist.all_reduce(torch.zeros(1), group=group)
    except Exception as error:
        result.append(type(error).__name__)
dist.barrier()
""",
    ),
    Program(
        "stores",
        """
store = c10d._get_default_store()
base = dist.PrefixStore(f"fidelity", store)
base.set(f"key{rank}", f"value {rank}")
base.wait([f"key{1 - rank}"], timedelta(seconds=10))
result = [
    base.get(f"key{1 - rank}").decode(), base.check(["nothing"]), base.add("count", 1) > 0,
    attempt(base.wait, ["nothing"], timedelta(milliseconds=100)), base.get(f"key{rank}").decode(),
    base.compare_set(f"own{rank}", "", "1").decode(), base.multi_get(["key0", "key1"]),
]
dist.barrier()
base.delete_key(f"key{rank}")
short = dist.PrefixStore("short", store)
before = short.timeout
short.set_timeout(timedelta(milliseconds=100))
result.append(attempt(short.get, "never set"))
short.set_timeout(before)
""",
    ),
    Program(
        "device mesh",
        """
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
result = [str(mesh), mesh.get_coordinate(), mesh.get_local_rank("inner"), mesh.size(), mesh.ndim]
for name in ("outer", "inner"):
    group = mesh.get_group(name)
    t = torch.tensor([rank + 1.0])
    dist.all_reduce(t, group=group)
    result.append([t.item(), dist.get_process_group_ranks(group), mesh[name].get_rank(),
                   mesh[name].get_group() is group, group.group_desc])
flat = mesh["outer", "inner"]._flatten("all")
t = torch.tensor([rank + 1.0])
dist.all_reduce(t, group=flat.get_group())
again = DeviceMesh.from_group(mesh.get_group("inner"), "cpu")
pairs = DeviceMesh("cpu", [[0, 3], [1, 2]], mesh_dim_names=("a", "b"))
result += [t.item(), again.mesh.tolist(), len(pairs.get_all_groups()),
           attempt(init_device_mesh, "cpu", (3, 2))]
""",
        ranks=4,
    ),
    Program(
        "equality and tables",
        """
group = dist.new_group()
table = {group: "mine", dist.group.WORLD: "all"}
result = [
    table[group], group == dist.group.WORLD, group in c10d._world.pg_map,
    c10d._world.pg_names[group], len(c10d._world.pg_group_ranks[group]), group == group,
    c10d._resolve_process_group(group.group_name) is group, bool(group),
    attempt(lambda: dist.get_process_group_ranks("nothing")), attempt(dist.get_rank, "nothing"),
]
""",
    ),
]
