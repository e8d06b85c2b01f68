"""Cells that read data in several passes, for ``%%ddp --sanitize data``: in one order, or not.

Each runs on two ranks, after `tests.cases.sanitized_data.DATA_PRELUDE`.
"""

from tests.cases.sanitized_data import EPOCHS, SET_EPOCH, data_cell

#: `fit` with an optimizer, so that the model of each pass is known.
_STEPS = """\
optimizer = torch.optim.SGD([weight], 0.1)
def fit(batch):
    (batch[0] * weight).sum().backward()
    dist.all_reduce(weight.grad); optimizer.step()
"""
_REMADE = """\
for epoch in range(3):
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data))
    for batch in loader:
        fit(batch)
"""
_FIT_MODEL = """\
def train(model, lr, sampler, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr)
    sampler.set_epoch(0)
    for batch in loader:
        optimizer.zero_grad(); model(batch[0]).sum().backward()
        for one in model.parameters(): dist.all_reduce(one.grad)
        optimizer.step()
"""

WRONG_ORDERS = [
    data_cell(
        "set_epoch with one number",
        _STEPS + EPOCHS.replace(SET_EPOCH[0], "    sampler.set_epoch(3)\n    for batch"),
        "same-order",
        ("Ranks 0-1 read TensorDataset in the same order in passes 1 and 2", "set 3 for both"),
        (5, 6, 9),
        ("set_epoch(3)", "set_epoch(epoch)"),
    ),
    data_cell(
        "set_epoch forgotten, and a loader that is made in each epoch",
        _STEPS + _REMADE,
        "same-order",
        ("Ranks 0-1 read TensorDataset in the same order in passes 1 and 2", "not called"),
        (6, 7),
        ("    for batch", "    loader.sampler.set_epoch(epoch)\n    for batch"),
    ),
    data_cell(
        "set_epoch forgotten, and a loader that is made in each epoch, without an optimizer",
        _REMADE,
        "same-order",
        ("Ranks 0-1 read TensorDataset in the same order in passes 1 and 2", "not called"),
        (2, 3),
        ("    for batch", "    loader.sampler.set_epoch(epoch)\n    for batch"),
        proven=False,
    ),
    data_cell(
        "set_epoch with one number, without an optimizer",
        EPOCHS.replace(SET_EPOCH[0], "    sampler.set_epoch(3)\n    for batch"),
        "same-order",
        ("Ranks 0-1 read TensorDataset in the same order in passes 1 and 2", "set 3 for both"),
        (1, 2, 5),
        ("set_epoch(3)", "set_epoch(epoch)"),
        proven=False,
    ),
]

#: Cells without a finding, and the notes below them: a word of each.
CORRECT_ORDERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "two models with one epoch each, in a function": (
        _FIT_MODEL + "sampler = DistributedSampler(data)\n"
        "loader = DataLoader(data, batch_size=2, sampler=sampler)\n"
        "for lr in (0.1, 0.2): train(torch.nn.Linear(1, 1), lr, sampler, loader)\n",
        (),
    ),
    "two models with one epoch and one loader each": (
        _FIT_MODEL + "for lr in (0.1, 0.2):\n    sampler = DistributedSampler(data)\n"
        "    train(torch.nn.Linear(1, 1), lr, sampler, DataLoader(data, 2, sampler=sampler))\n",
        (),
    ),
}
