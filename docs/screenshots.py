"""Pictures of the main views, for the documents, and to be looked at before a change is merged.

    make screenshots                             # -> docs/images/*.png
    python -m docs.screenshots --only card -n 8  # some of them

Each view is a cell that is run in a real JupyterLab in a headless Chromium, through
tests/support/browser.py, at 2, 8 and 64 ranks, and taken in the light and in the dark theme.

Runs in: its own process, one thread.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser

from tests.support.browser import Book, BookCell, Server, browsing, missing, serving, write_notebook

IMAGES = Path(__file__).resolve().parent / "images"
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
RANKS = (2, 8, 64)
#: Screenshots have few colours: this many keep the letters smooth and the files small.
COLOURS = 128
#: More ranks have no button of their own in the panel.
MAX_BUTTONS = 16
#: A file in the folder of the notebooks.
GATE = "go-on"
#: A longer picture is cut.
MAX_HEIGHT = 1000
#: The first cell of 64 ranks on two cores takes its time.
LIMIT_S = 60.0
#: The theme is on, and what hides the page meanwhile is gone.
_IS_DRESSED = """name => document.body.dataset.jpThemeName === name
  && !document.getElementById('jupyterlab-splash')"""


@dataclass(frozen=True)
class View:
    """One thing that a reader may have in front of them."""

    name: str
    source: str
    before: str = ""  #: a cell that is run first and not taken
    answers: tuple[str, ...] = ()  #: what the reader types at its prompts
    clicks: tuple[str, ...] = ()  #: buttons that the reader presses; taken before the last one
    until: str = ""  #: taken when this is seen, while the cell runs; it ends when there is a `GATE`


_MODEL = (
    "%%ddp\nfrom torch import nn\ntorch.manual_seed(0)\nmodel = nn.Linear(8, 4)\n"
    "loss = torch.tensor(0.5)\nif rank == 1:\n    with torch.no_grad():\n"
    "        model.weight[1, 3] += 1e-3"
)

VIEWS = (
    View(
        "folded",
        "%%ddp\nx = torch.arange(3.0)\nprint('the same on all ranks', x)\n"
        "print('my half', 'lower' if rank < world_size // 2 else 'upper')\ndist.get_backend()",
    ),
    View("many", "%%ddp\nfor step in range(3):\n    print(f'step {step}, loss {rank + step}')"),
    View(
        "odd",
        "%%ddp\nloss = torch.tensor(0.25)\nif rank == 1:\n    loss /= 0\n"
        "for step in range(3):\n    print(f'step {step}, loss {loss.item():.3f}')",
    ),
    View(
        "error",
        "%%ddp\ndef read(sample):\n    return {0: 'a', 1: 'b'}[sample]\n\n"
        "read(rank if rank != 1 else 7) if rank < 2 else None",
    ),
    View(
        "card",
        "%%ddp\nloss = torch.tensor(float(rank))\nif rank == 0:\n    dist.all_reduce(loss)\n"
        "    print('mean loss', loss.item() / world_size)",
    ),
    View("status", "%ddp status"),
    View(
        "trace",
        "%ddp trace --last 4",
        before="%%ddp\nfor size in (10, 1000, 100_000):\n    dist.all_reduce(torch.ones(size))\n"
        "if rank == 1:\n    torch.randn(1000, 1000).svd()\ndist.barrier()",
    ),
    View(
        "timeline",
        "%ddp timeline",
        before="%%ddp\nimport time\n\nfor step in range(5):\n"
        "    time.sleep(0.06 if rank == 1 else 0.02)\n    dist.all_reduce(torch.ones(200_000))",
    ),
    View(
        "show",
        "%%ddp\nt = torch.arange(3.0) + rank\nwith nbddp.show(t):\n    dist.all_reduce(t)",
    ),
    View(
        "step",
        "%%ddp --step\nx = torch.tensor([rank % 2 + 1.0])\ndist.all_reduce(x)\nprint(x)",
        answers=("print x", "step -r 0", "step"),
    ),
    View(
        "panel",
        "%%ddp --step --panel\nx = torch.ones(2) * rank\ndist.all_reduce(x)\n"
        "y = x.sum()\ndist.all_reduce(y)\nprint(y)",
        clicks=("Step", "0", "Step chosen", "Continue"),
    ),
    View("vars", "%ddp vars loss model", before=_MODEL),
    View("diff", "%ddp diff model", before=_MODEL),
    View(
        "bars",
        "%%ddp\nimport time\nfrom pathlib import Path\nfrom tqdm.notebook import tqdm\n\n"
        "for n in tqdm(range(8), desc='load', mininterval=0):\n"
        f"    while n == 2 + rank % 5 and not Path('{GATE}').exists():\n"
        "        time.sleep(0.05)",
        until="2/8",
    ),
)


def take(server: Server, browser: Browser, ranks: int, views: list[View]) -> list[Path]:
    """Run the views with so many ranks; gives the files."""
    page = browser.new_page(viewport={"width": 1000, "height": 2400})
    book = Book(server, page, f"views-{ranks}.ipynb", "lab")
    write_notebook(book.path)
    book.open()
    book.command("application:toggle-left-area")
    # Without names for its addresses, a machine makes torch warn once for each connection.
    quiet = "--env TORCH_CPP_LOG_LEVEL=ERROR"
    start = f"%load_ext nbddp\n%ddp start -n {ranks} --device cpu --threads 1 {quiet}"
    book.run(start, LIMIT_S).wait_text("on the CPU, connected with Gloo")
    written = []
    cells = {}
    for view in views:
        if view.before:
            book.run(view.before, LIMIT_S)
        if view.until:
            cell = book.start(view.source).wait_text(view.until, LIMIT_S)
            written += shoot(book, ranks, {view.name: cell})
            gate = server.folder / GATE
            gate.touch()
            cell.wait_done(LIMIT_S)
            gate.unlink()
        elif view.clicks:
            cell = book.start(view.source)
            for name in view.clicks[:-1]:
                press(cell, name)
            cell.output.locator('td[title="rank 0: waits in it"]').first.wait_for()
            written += shoot(book, ranks, {view.name: cell})
            press(cell, view.clicks[-1])
            cell.wait_done(LIMIT_S)
        elif view.answers:
            cells[view.name] = book.start(view.source)
            for text in view.answers:
                book.answer(text)
            cells[view.name].wait_done(LIMIT_S)
        else:
            cells[view.name] = book.run(view.source, LIMIT_S)
    book.add("")  # the last cell is the active one, with a tool bar in it
    written += shoot(book, ranks, cells)
    book.close()
    return written


def press(cell: BookCell, name: str) -> None:
    """Press a button in the output of a cell when it can be pressed."""
    cell.output.get_by_role("button", name=name, exact=True).click(timeout=LIMIT_S * 1000)


def shoot(book: Book, ranks: int, cells: dict[str, BookCell]) -> list[Path]:
    """Take cells in all themes; gives the files."""
    written = []
    for theme, name in THEMES.items():
        book.command("apputils:change-theme", theme=name)
        book.wait(_IS_DRESSED, name, name)
        for view, cell in cells.items():
            path = IMAGES / f"{view}-{ranks}-{theme}.png"
            cell.screenshot(path)
            picture = Image.open(path).convert("RGB")
            cut = picture.crop((0, 0, picture.width, min(picture.height, MAX_HEIGHT)))
            cut.quantize(COLOURS).save(path, optimize=True)
            written.append(path)
    return written


def main() -> int:
    """Take what the command line names."""
    parser = argparse.ArgumentParser(description="Take pictures of the main views.")
    names = [view.name for view in VIEWS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="VIEW")
    parser.add_argument("-n", nargs="+", type=int, default=RANKS, metavar="RANKS")
    options = parser.parse_args()
    if reason := missing():
        sys.stderr.write(f"no pictures: {reason}\n")
        return 1
    views = [view for view in VIEWS if view.name in options.only]
    with (
        tempfile.TemporaryDirectory(prefix="views-") as folder,
        serving(Path(folder)) as server,
        browsing() as browser,
    ):
        for ranks in options.n:
            shown = [view for view in views if ranks <= MAX_BUTTONS or not view.clicks]
            for path in take(server, browser, ranks, shown):
                print(f"{path.stat().st_size / 1000:6.1f} kB  {path.relative_to(Path.cwd())}")
    total = sum(path.stat().st_size for path in IMAGES.glob("*.png"))
    print(f"{total / 1000:6.1f} kB  in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
