"""``%%ddp --sanitize`` in a real kernel: a card below the output, and a cell that does not fail."""

from tests.support.kernel import Kernel

RACE = """\
x = torch.ones(8)
work = dist.all_reduce(x, async_op=True)
x.add_(1)
work.wait()
print("done")
"""


def test_the_card_stands_below_the_output(kernel: Kernel):
    page = kernel.ok(f"%%ddp --sanitize\n{RACE}").page
    assert page[0].text == "[0-1] done\n"
    assert page[1].text.startswith("Warning: ranks 0-1 wrote a tensor that all_reduce still uses")
    assert "<summary" in page[1].content["data"]["text/html"]
    assert len(kernel.ok(f"%%ddp\n{RACE}").page) == 1


def test_the_setting_is_for_all_cells(kernel: Kernel):
    assert "sanitize=on" in kernel.ok("%ddp config sanitize=on").page[0].text
    try:
        assert len(kernel.ok(f"%%ddp\n{RACE}").page) == 2
    finally:
        kernel.ok("%ddp config sanitize=off")


def test_data_that_ranks_share_wrongly_have_a_card_and_notes_a_line(kernel: Kernel):
    prelude = "from torch.utils.data import *\ndata = TensorDataset(torch.arange(9.0))\n"
    kernel.ok(f"%%ddp\n{prelude}")
    cell = kernel.ok(
        "%%ddp --sanitize data\nweight = torch.ones(1, requires_grad=True)\n"
        "for batch, in DataLoader(data, 3):\n"
        "    (batch * weight).sum().backward()\n    dist.all_reduce(weight.grad)"
    )
    card = cell.page[0]
    assert card.text.startswith("Notice: ranks 0-1 each read all 9 samples of TensorDataset")
    change = "for batch, in DataLoader(data, 3, sampler=DistributedSampler(data, shuffle=False)):"
    assert f"+ {change}" in card.text
    assert change in card.content["data"]["text/html"]
    kernel.ok("%ddp config sanitize=data")
    try:
        code = "for batch, in DataLoader(data, sampler=DistributedSampler(data)): pass"
        cell = kernel.ok(f"%%ddp\n{code}")
    finally:
        kernel.ok("%ddp config sanitize=off")
    assert "--sanitize data: DistributedSampler gave 1 of the 9 samples" in cell.page[-1].text
