"""A session adds little to its notebook, and all of it is readable without a kernel."""

import html
import re
from copy import deepcopy
from functools import cache

import bleach  # type: ignore[import-untyped]
import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter, MarkdownExporter
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

MAX_BYTES = 200_000

SESSION = [
    "%load_ext nbddp\n%ddp start -n 4",
    "%%ddp\nprint(f'rank {rank} of {world_size} on {device}')",
    "%ddp status",
    "%%ddp\nimport torch.nn as nn\ntorch.manual_seed(0)\n"
    "model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))\nmodel",
    "%%ddp\nx = torch.ones(4) * rank\ndist.all_reduce(x)\nx",
    "%%ddp\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
    "ddp = DDP(model)\noptimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)",
    "%%ddp\nfor step in range(60):\n"
    "    optimizer.zero_grad()\n"
    "    loss = ddp(torch.randn(16, 32)).square().mean()\n"
    "    loss.backward()\n    optimizer.step()\n"
    "    if rank == 0 and step % 2 == 0: print(f'step {step} loss {loss.item():.4f}')",
    "%%ddp --trace\nfor _ in range(3): dist.barrier()",
    "%ddp trace",
    "%ddp timeline",
    "%%ddp\nfor step in range(500): print(f'step {step} rank {rank} loss {1 / (step + 1):.6f}')",
    "%%ddp --out ranks\nprint({name: tuple(p.shape) for name, p in model.named_parameters()})\n"
    "print('seed', torch.initial_seed() + rank)",
    "%%ddp --out quiet\nprint('x' * 1000)\nsum(p.numel() for p in model.parameters())",
    "%%ddp\nfrom tqdm import tqdm\nfor _ in tqdm(range(100)): pass",
    "%%ddp\nif rank == 1:\n    with torch.no_grad(): model[0].weight[1, 3] += 1",
    "%ddp vars loss model",
    "%ddp diff model",
    "%%ddp\nwith nbddp.show(x):\n    x.mul_(rank)",
    "%%ddp -r 2\n1 / 0",
    "%%ddp\nif rank != 3: dist.all_reduce(x)",
    "%%ddp\nprint('still', x.sum().item())",
    "%%ddp\nfrom IPython.display import HTML, display\ndisplay(HTML(f'<b>rank {rank}</b>'))",
    "%ddp stacks",
    "%ddp status --live",
]
#: GitHub and mails remove from HTML: styles, classes, and pictures inside the page.
_TAGS = ["a", "b", "br", "code", "details", "div", "em", "hr", "i", "img", "li", "p", "pre",
         "span", "strong", "summary", "table", "tbody", "td", "th", "thead", "tr"]  # fmt: skip
_ATTRIBUTES = {
    "*": ["align", "alt", "colspan", "height", "rowspan", "title", "width"],
    "img": ["src"],
}
#: The words that a reader must find in each cell.
_TOLD = {
    "%ddp status": ["rank", "state", "idle"],
    "%ddp trace": ["barrier", "rank 3", "bold: came last"],
    "%ddp timeline": ["barrier", "hatched: waits for the others"],
    "%ddp vars loss model": ["other values than on ranks 0,2-3"],
    "%ddp diff model": ["ranks 0,2-3 agree; rank 1 differs", "max abs difference"],
    "%%ddp\nif rank != 3: dist.all_reduce(x)": [
        "Deadlock: rank 3 never called",
        "Proven:",
        "Next:",
    ],
}
_IMAGE = re.compile(r"data:image/[a-z+]+;base64,[^\"]*")


@cache
def saved() -> NotebookNode:
    notebook: NotebookNode = new_notebook(cells=[new_code_cell(source) for source in SESSION])
    NotebookClient(notebook, timeout=60, kernel_name="python3", allow_errors=True).execute()
    return notebook


def size(notebook: NotebookNode) -> int:
    """The bytes of the file, without images."""
    for cell in notebook.cells:
        for output in cell.outputs:
            for kind in [kind for kind in output.get("data", {}) if kind.startswith("image/")]:
                del output.data[kind]
    return len(_IMAGE.sub("", nbformat.writes(notebook)).encode())


@pytest.mark.full
def test_a_session_of_20_cells_adds_less_than_200_kb():
    notebook = deepcopy(saved())
    empty = new_notebook(cells=[new_code_cell(cell.source) for cell in notebook.cells])
    assert len(notebook.cells) >= 20
    by_cell = {
        cell.source.splitlines()[0][:40] + f" #{number}": len(str(cell.outputs))
        for number, cell in enumerate(notebook.cells)
    }
    assert size(notebook) - size(empty) < MAX_BYTES, by_cell
    errors = [output.ename for cell in saved().cells for output in cell.outputs
              if output.output_type == "error"]  # fmt: skip
    assert errors == ["CellError", "DeadlockError"]


def test_each_output_is_static():
    for cell in saved().cells:
        for output in cell.outputs:
            data = output.get("data", {})
            assert "application/vnd.jupyter.widget-view+json" not in data
            page = data.get("text/html", "")
            assert not re.search(r"<(?:style|script|svg|iframe)\b|\son\w+=", page), page
            if "text/html" in data:
                assert "text/plain" in data


def test_a_notebook_without_styles_and_pictures_says_the_same_in_words():
    outputs = [(cell.source, output) for cell in saved().cells for output in cell.outputs]
    pages = [(source, output.data["text/html"]) for source, output in outputs
             if "text/html" in output.get("data", {})]  # fmt: skip
    left: dict[str, str] = {}
    for source, page in pages:
        cleaned = bleach.clean(page, tags=_TAGS, attributes=_ATTRIBUTES, strip=True)
        assert not re.search(r"style=|class=|data:", cleaned)
        assert text_of(cleaned) == text_of(page)
        left[source] = left.get(source, "") + text_of(cleaned)
    lost = {source: [each for each in words if each not in left.get(source, "")]
            for source, words in _TOLD.items()}  # fmt: skip
    assert lost == {source: [] for source in _TOLD}, left


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", page))


@pytest.mark.parametrize("exporter", [HTMLExporter, MarkdownExporter])
def test_a_saved_notebook_can_be_converted(exporter: type[HTMLExporter | MarkdownExporter]):
    text, _ = exporter().from_notebook_node(saved())
    assert "came last" in text or "all_reduce" in text
    assert "step 499 rank 3" in text
    assert "ZeroDivisionError" in text
    assert "never called all_reduce" in text
