"""Cells in which the two ends of a message do not match."""

from nbddp.errors import MismatchError
from tests.cases.hung_cells import HungCell

#: The two ends of a message.
MESSAGES = [
    HungCell(
        name="message too large for its receiver",
        code="if rank:\n    dist.recv(torch.empty(2), 0)\nelse:\n    dist.send(torch.ones(4), 1)",
        kind="mismatched-collective",
        culprits="0-1",
        waiting=None,
        fields=("input_sizes",),
        lines={0: 4, 1: 2},
        error=MismatchError,
    ),
    HungCell(
        name="message too small",
        code="if rank:\n    dist.recv(torch.empty(8), 0)\nelse:\n    dist.send(torch.ones(4), 1)",
        kind="mismatched-collective",
        culprits="0-1",
        waiting=None,
        fields=("input_sizes",),
        error=MismatchError,
        words=("float32[8]", "float32[4]"),
        is_variant=True,
    ),
    HungCell(
        name="message of another dtype",
        n=3,
        code="""\
if rank == 2:
    dist.recv(torch.empty(4, dtype=torch.int32), 1)
elif rank == 1:
    dist.send(torch.ones(4), 2)
""",
        kind="mismatched-collective",
        culprits="1-2",
        waiting=None,
        fields=("input_dtypes",),
        lines={1: 4, 2: 2},
        error=MismatchError,
        is_variant=True,
    ),
    HungCell(
        name="two messages taken in the other order",
        code="""\
if rank == 0:
    dist.send(torch.ones(1), 1)
    dist.send(torch.ones(5), 1)
else:
    dist.recv(torch.empty(5), 0)
    dist.recv(torch.empty(1), 0)
""",
        kind="mismatched-collective",
        culprits="0-1",
        waiting=None,
        fields=("input_sizes",),
        lines={0: 2, 1: 5},
        error=MismatchError,
    ),
]
