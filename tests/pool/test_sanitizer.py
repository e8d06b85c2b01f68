"""``%%ddp --sanitize`` on real ranks: faults are found with their lines, and nothing else is."""

from collections.abc import Sequence

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import DeadlockError
from tests.cases.sanitized import BUFFERS, MAY_HAVE_OWN_TENSORS, WrongCell
from tests.cases.sanitized_correct import CORRECT, PRELUDE
from tests.cases.sanitized_dropped_gradients import CORRECT_DROPPED_GRADIENTS
from tests.cases.sanitized_ends import CORRECT_ENDS, ENDS, EndCell
from tests.cases.sanitized_lines import CORRECT_LINES, LINES
from tests.cases.sanitized_new_optimizers import CORRECT_NEW_OPTIMIZERS, NEW_OPTIMIZERS
from tests.cases.sanitized_other_models import CORRECT_OTHER_MODELS, OTHER_MODELS
from tests.cases.sanitized_replicas import REPLICAS
from tests.cases.sanitized_replicas_correct import CORRECT_REPLICAS
from tests.cases.sanitized_steps_alone import CORRECT_STEPS_ALONE, STEPS_ALONE
from tests.cases.sanitized_steps_unpaired import STEPS_UNPAIRED
from tests.cases.sanitized_training import CORRECT_TRAINING
from tests.cases.sanitized_values import CORRECT_VALUES, VALUES
from tests.cases.sanitized_weights_put_back import CORRECT_PUT_BACK
from tests.cases.training_kinds import CLEAN_UP, DEFAULTS, KINDS, Kind, parametrize
from tests.cases.training_kinds import PRELUDE as KIND_PRELUDE
from tests.support.sampling import one_in
from tests.support.sanitizer_findings import check_only_finding, findings
from tests.support.views import run_cell

_WRONG_TABLES: list[Sequence[WrongCell]] = [
    BUFFERS, VALUES, LINES, REPLICAS, ENDS, STEPS_ALONE, OTHER_MODELS, STEPS_UNPAIRED,
    NEW_OPTIMIZERS,
]  # fmt: skip
WRONG = [cell for table in _WRONG_TABLES for cell in table]
_SILENT_TABLES = [
    CORRECT,
    CORRECT_TRAINING,
    CORRECT_VALUES,
    CORRECT_LINES,
    CORRECT_REPLICAS,
    CORRECT_ENDS,
    CORRECT_PUT_BACK,
    CORRECT_STEPS_ALONE,
    CORRECT_OTHER_MODELS,
    CORRECT_DROPPED_GRADIENTS,
    CORRECT_NEW_OPTIMIZERS,
]
SILENT = {name: code for table in _SILENT_TABLES for name, code in table.items()}
#: Each fourth case of each table; the others are left to `make test-full`.
_SOME_WRONG = [case for table in _WRONG_TABLES for case in one_in(4, table)]
_SOME_SILENT = [case for table in _SILENT_TABLES for case in one_in(4, table)]


def _each(cells: Sequence[WrongCell]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("cell", cells, ids=lambda cell: cell.name)


@_each(WRONG)
def test_a_fault_is_told_with_its_lines(pool: Pool, cell: WrongCell):
    view = run_cell(pool, cell.code, sanitize=True)
    check_only_finding(view, cell)
    if isinstance(cell, EndCell):
        (finding,) = findings(view)
        assert [word for word in cell.next_words if word not in finding.next_step] == []
    if cell in BUFFERS:
        (finding,) = findings(view)
        advises_tensor = finding.next_step.endswith((" a copy.", " a tensor of its own."))
        assert advises_tensor == (cell.name in MAY_HAVE_OWN_TENSORS)


@pytest.mark.parametrize("cell", _SOME_WRONG)
def test_the_fixed_cell_is_silent(pool: Pool, cell: WrongCell):
    assert findings(run_cell(pool, cell.fixed, sanitize=True)) == []


@_each([cell for cell in WRONG if cell.name in ("write", "read", "handle that is not kept")])
def test_without_the_option_nothing_is_told(pool: Pool, cell: WrongCell):
    assert findings(run_cell(pool, cell.code)) == []


@pytest.mark.parametrize("name", _SOME_SILENT)
def test_a_correct_cell_is_silent(pool: Pool, name: str):
    found = findings(run_cell(pool, PRELUDE + SILENT[name], sanitize=True))
    assert [finding.headline for finding in found] == []


def test_a_model_of_each_rank_from_an_earlier_cell_is_not_told(pool: Pool):
    """It has no backward pass in later cells, whose gradients are those of another model."""
    run_cell(pool, f"{PRELUDE}bad = DDP(nn.Linear(2, 1))\nbad.module.bias.data.fill_(rank)")
    code = "model = DDP(nn.Linear(2, 1))\nmodel(torch.randn(4, 2)).sum().backward()"
    for _ in range(2):
        assert findings(run_cell(pool, code, sanitize=True)) == []
    run_cell(pool, "del bad, model")


@pytest.mark.full
@parametrize([kind for kind in KINDS if kind.ranks == 2])
def test_training_of_each_kind_is_silent(pool: Pool, kind: Kind):
    code = f"{KIND_PRELUDE}{DEFAULTS}{kind.code}\nlosses = fit(make(), 0, 3)"
    assert [each.headline for each in findings(run_cell(pool, code, sanitize=True))] == []
    run_cell(pool, CLEAN_UP)


def test_a_message_that_was_dropped_is_told_in_a_cell_that_has_failed(pool: Pool):
    code = (
        "x = torch.ones(4)\nif rank == 0:\n    dist.isend(x, 1)\ndist.barrier()\nraise ValueError"
    )
    (finding,) = findings(run_cell(pool, code, sanitize=True, check=False))
    assert "Nothing has waited for send to rank 1, which rank 0 called" in finding.headline


def test_a_message_whose_handle_an_error_has_deleted_is_not_told(pool: Pool):
    code = """\
dist.barrier()
def send():
    work = dist.isend(torch.ones(4), 1 - rank)
    raise ValueError
try:
    send()
except ValueError as error:
    error.__traceback__ = None
    raise KeyError from None
"""
    assert findings(run_cell(pool, code, sanitize=True, check=False)) == []


def test_there_are_enough_correct_cells():
    assert len(SILENT) >= 40


def test_a_setting_that_one_rank_changes_is_named(pool: Pool):
    (cell,) = (each for each in REPLICAS if each.name == "learning rate of one rank")
    (finding,) = findings(run_cell(pool, cell.code, sanitize=True))
    assert finding.next_step == (
        "Give SGD the same lr on all ranks: it had lr=0.1 on rank 0, lr=0.2 on rank 1."
    )


_CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)"


@pytest.mark.parametrize(
    ("race", "change"),
    [("optimizer.step()", "model.weight.data.add_(rank)"), (_CLIP, "model.weight.grad.add_(rank)")],
    ids=["in a step", "in another line"],
)
def test_replicas_that_part_by_a_race_are_its_consequence(pool: Pool, race: str, change: str):
    """Ranks use gradients that are open; rank 1 then changes them, or the weights, as it may."""
    code = f"""\
torch.manual_seed(1)
model = torch.nn.Linear(4, 2, bias=False)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.ones(4, 4)).sum().backward()
work = dist.all_reduce(model.weight.grad, async_op=True)
{race}
work.wait()
{change}
optimizer.step()
"""
    buffer, parted = findings(run_cell(pool, code, sanitize=True))
    assert (buffer.kind, buffer.is_consequence) == ("buffer-in-use", False)
    assert (parted.kind, parted.is_consequence) == ("parted-replicas", True)


def test_a_delay_on_purpose_is_no_reason_of_a_race(pool: Pool):
    view = run_cell(
        pool,
        f"{BUFFERS[0].code}dist.barrier()\n",
        sanitize=True,
        faults="rank 1: delay 1 ms before the next barrier",
    )
    (finding,) = findings(view)
    assert finding.next_step.startswith("Call `wait()`")
    assert finding.code


def test_a_fault_is_told_beside_the_error_of_a_cell(pool: Pool):
    code = (
        "x = torch.ones(4)\nwork = dist.all_reduce(x, async_op=True)\nx.add_(1)\nwork.wait()\n"
        "raise ValueError"
    )
    view = run_cell(pool, code, sanitize=True, check=False)
    assert [finding.kind for finding in findings(view)] == ["buffer-in-use"]
    assert view.error is not None
    assert {name for name, _ in view.error.by_rank.values()} == {"ValueError"}


def test_an_error_explains_an_operation_that_nothing_has_waited_for(pool: Pool):
    code = "work = dist.all_reduce(torch.ones(4), async_op=True)\nraise ValueError"
    assert findings(run_cell(pool, code, sanitize=True, check=False)) == []


def test_a_fault_is_told_beside_a_deadlock(pool: Pool):
    code = (
        "x = torch.ones(4)\nwork = dist.all_reduce(x, async_op=True)\nx.add_(1)\nwork.wait()\n"
        "if rank == 0:\n    dist.barrier()"
    )
    view = run_cell(pool, code, sanitize=True, check=False)
    assert [finding.kind for finding in findings(view)] == ["missing-rank", "buffer-in-use"]
    assert isinstance(view.error, DeadlockError)
    assert findings(run_cell(pool, "dist.all_reduce(torch.ones(1))", sanitize=True)) == []


def test_a_cell_may_be_sanitized_and_step(pool: Pool):
    view = run_cell(pool, BUFFERS[0].code, sanitize=True, step=True, answers=["step"])
    assert [finding.kind for finding in findings(view)] == ["buffer-in-use"]


def test_a_sharded_module_on_one_rank_costs_no_collective(pool: Pool):
    """The sanitizer hashes modules that have gradients; of a DTensor only the part of the rank."""
    run_cell(
        pool,
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module\n"
        "mesh = init_device_mesh('cpu', (2,))\n"
        "net = torch.nn.Sequential(torch.nn.Linear(4, 4))\n"
        "parallelize_module(net, mesh, {'0': ColwiseParallel()})\n"
        "net(torch.ones(1, 4)).sum().backward()\n"
        "if rank == 0:\n    del net",
    )
    view = run_cell(pool, "x = torch.ones(4)\ndist.all_reduce(x)\nprint(x[0])", sanitize=True)
    assert view.texts() == dict.fromkeys(range(2), "tensor(2.)\n")
    # An operation more on one rank would share a row with the `all_reduce` of the other.
    assert [row.op for row in pool.trace_rows()[-1:]] == ["all_reduce"]
    assert not any("|" in row.op for row in pool.trace_rows()[-2:])
    run_cell(pool, "net = None")


WARNED = {
    "sequence parallel": """\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel
from torch.distributed.tensor.parallel import parallelize_module
net = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
kinds = SequenceParallel(), ColwiseParallel(input_layouts=Shard(1)), RowwiseParallel()
plan = {str(number): kind for number, kind in enumerate(kinds)}
parallelize_module(net, init_device_mesh("cpu", (2,)), plan)
net(torch.randn(2, 4, 4).chunk(2, 1)[rank]).sum().backward()
del net
""",
    "a parameter that is no leaf": """\
from copy import deepcopy
torch.manual_seed(1)
net = torch.nn.Linear(2, 1)
mean = deepcopy(net).requires_grad_(False)
for each, value in zip(mean.parameters(), net.parameters()):
    each.mul_(0.9).add_(value, alpha=0.1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
net(torch.ones(1, 2)).sum().backward()
for each in net.parameters():
    dist.all_reduce(each.grad)
torch.optim.SGD(net.parameters(), 0.1).step()
del net, mean, model, optimizer
""",
}


@pytest.mark.parametrize("name", WARNED)
def test_torch_warns_of_nothing_that_the_sanitizer_does(pool: Pool, name: str):
    view = run_cell(pool, WARNED[name], sanitize=True)
    said = "".join(view.texts("stderr").values())
    assert [line for line in said.splitlines() if "nbddp" in line] == []
    assert findings(view) == []


def test_a_loop_is_told_once(pool: Pool):
    code = """\
for step in range(5):
    x = torch.ones(4)
    work = dist.all_reduce(x, async_op=True)
    x.add_(1)
    work.wait()
"""
    assert len(findings(run_cell(pool, code, sanitize=True))) == 1


def test_the_setting_sanitizes_each_cell(pool: Pool):
    pool.configure(sanitize="on")
    try:
        assert len(findings(run_cell(pool, BUFFERS[0].code))) == 1
    finally:
        pool.configure(sanitize="off")
    assert findings(run_cell(pool, BUFFERS[0].code)) == []


def test_a_cell_leaves_torch_as_it_was(pool: Pool):
    run_cell(pool, "before = torch.Tensor.__repr__, torch.Tensor.tolist")
    run_cell(pool, BUFFERS[0].code, sanitize=True)
    code = """\
from torch.utils import _python_dispatch
assert before == (torch.Tensor.__repr__, torch.Tensor.tolist)
assert _python_dispatch._get_current_dispatch_mode_stack() == []
"""
    run_cell(pool, code)
