"""Cells in which ranks pass tensors that lie otherwise in memory: strides, layout, device."""

from nbddp.errors import MismatchError
from tests.cases.hung_cells import HungCell

STRIDES = [
    HungCell(
        name="strides",
        n=3,
        code="""\
x = torch.arange(6.0).reshape(2, 3)
if rank == 2:
    x = x.t().contiguous().t()
dist.broadcast(x, 0)
""",
        kind="mismatched-collective",
        culprits="2",
        waiting=None,
        fields=("strides",),
        error=MismatchError,
        words=(
            "strides=(1, 2)",
            "float32[2, 3], contiguous",
            "x.contiguous()",
            "on rank 2 `x = x.contiguous()` before cell",
        ),
    ),
    HungCell(
        name="strides after a call with the same shape",
        n=3,
        before="dist.all_reduce(torch.ones(2, 3))",
        code="x = torch.ones(3, 2).t() if rank == 0 else torch.ones(2, 3)\ndist.all_reduce(x)",
        kind="mismatched-collective",
        culprits="0",
        waiting=None,
        fields=("strides",),
        error=MismatchError,
        is_variant=True,
    ),
    HungCell(
        name="strides of the tensors that the root scatters",
        code="""\
x = torch.arange(6.0).reshape(3, 2).t()
dist.scatter(torch.empty(2, 3), [x, x] if rank == 0 else None, src=0)
""",
        kind="mismatched-collective",
        culprits="0-1",
        waiting=None,
        fields=("strides",),
        error=MismatchError,
        words=("scatter",),
        is_variant=True,
    ),
    HungCell(
        name="a sparse tensor on one rank",
        code="x = torch.eye(4)\nif rank == 1:\n    x = x.to_sparse()\ndist.all_reduce(x)\n",
        kind="mismatched-collective",
        culprits="0-1",
        waiting=None,
        fields=("places",),
        error=MismatchError,
        words=("float32[4, 4], dense", "float32[4, 4], sparse_coo", "layout and device"),
    ),
    HungCell(
        name="a tensor of the meta device on one rank",
        n=3,
        code="x = torch.empty(4, device='meta' if rank == 1 else 'cpu')\ndist.broadcast(x, 0)\n",
        kind="mismatched-collective",
        culprits="1",
        waiting=None,
        fields=("places",),
        error=MismatchError,
        words=("float32[4] on meta", "layout and device"),
    ),
    HungCell(
        name="a tensor of the meta device after a call with the same shape",
        before="for _ in range(2):\n    dist.all_reduce(torch.ones(4))",
        code="x = torch.empty(4, device='meta' if rank == 1 else 'cpu')\ndist.all_reduce(x)\n",
        kind="mismatched-collective",
        culprits="0-1",
        waiting=None,
        fields=("places",),
        error=MismatchError,
        words=("float32[4] on meta", "layout and device"),
        is_variant=True,
    ),
]
