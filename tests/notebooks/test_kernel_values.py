"""Values of all ranks in a notebook: vars, diff, show."""

import base64

from tests.support.kernel import Cell, Kernel
from tests.support.png import decode

MODEL = (
    "%%ddp\nfrom torch import nn\ntorch.manual_seed(0)\nmodel = nn.Linear(4, 3)\n"
    "with torch.no_grad(): model.weight[1, 2] += rank"
)


def bundle(cell: Cell) -> dict[str, str]:
    (message,) = cell.page
    found: dict[str, str] = message.content["data"]
    return found


def test_vars_diff_and_show(kernel: Kernel):
    kernel.ok(MODEL)
    told = bundle(kernel.ok("%ddp vars model rank"))
    lines = [line.split() for line in told["text/plain"].splitlines()]
    assert lines[0][:3] == ["name", "ranks", "type"]
    assert [line[:3] for line in lines[1:3]] == [["model", "0", "Linear"], ["1", "Linear", "15"]]
    assert told["text/html"].startswith("<div")

    found = bundle(kernel.ok("%ddp diff model"))
    assert found["text/plain"].startswith("model: ranks 0 and 1 differ\n")
    assert "[1, 2]" in found["text/plain"]
    assert "<b>ranks 0 and 1 differ</b>" in found["text/html"]
    equal = kernel.ok("%ddp diff model.bias world_size  # two expressions")
    assert [m.text.splitlines()[0] for m in equal.page] == [
        "model.bias: equal on ranks 0-1",
        "world_size: equal on ranks 0-1",
    ]

    shown = kernel.ok(
        "%%ddp\nx = torch.full((2,), float(rank))\nprint('first')\n"
        "with nbddp.show(x):\n    dist.all_reduce(x)\nprint('last')"
    )
    assert [m.text.splitlines()[0] for m in shown.page] == [
        "[0-1] first",
        "x  float32 (2,)",
        "[0-1] last",
    ]
    picture = shown.page[1].content
    assert (
        "after | equal on all ranks\nrank 0   rank 1\n1 1      1 1" in picture["data"]["text/plain"]
    )
    pixels = decode(base64.b64decode(picture["data"]["image/png"]))
    size = picture["metadata"]["image/png"]
    assert (len(pixels[0]), len(pixels)) == (2 * size["width"], 2 * size["height"])
    assert "x  float32 (2,)" in size["alt"]


def test_refusals_of_vars_diff_and_show(kernel: Kernel):
    missing = kernel.run("%ddp vars no_such_name")
    assert "ranks 0-1 have no variable 'no_such_name'. Next: %ddp vars" in missing.error
    assert "'no_such_name' has no value" in kernel.run("%ddp diff no_such_name").error
    assert "%ddp diff needs an expression" in kernel.run("%ddp diff").error
    assert "in a %%ddp cell" in kernel.run("import nbddp\nnbddp.show(3)").error
