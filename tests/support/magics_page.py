"""The examples of ``docs/magics.md`` and ``docs/debugging.md``: reads, runs and writes them.

``python -m tests.support.magics_page`` runs all of them and writes the outputs into the pages,
for use after a change of what a verb shows. Examples with lines at a prompt stay as they are; the
program prints what they show now.
"""

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.kernel import Cell, Kernel, running_kernel

PAGE = Path(__file__).resolve().parents[2] / "docs" / "magics.md"
DEBUGGING = PAGE.with_name("debugging.md")
#: A kernel in which every verb works: `%ddp debugger` does not in a stock one.
LAUNCH = ("-m", "nbddp.notebook.ipykernel_app", "--NbddpKernel.pool=-n 2")

_HEADING = re.compile(r"^## `(%ddp \w+|%%\w+)`: .+$", re.MULTILINE)
_EXAMPLE = re.compile(
    r"^```python( raises)?\n(.*?)^```$(?:\n```\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)
_CLUSTERS = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROMPT = re.compile(r"^(?:\[\d+\] +ipdb> |\((?:step|deadlock)\) )")
#: What differs from run to run: addresses, paths, durations and sizes, then every other number.
_VARYING = (
    (re.compile(r"\*(?=\d)"), ""),  # in a trace: this rank came last
    (re.compile(r"/\S*/nbddp-\w+"), "FOLDER"),
    (re.compile(r"\b[0-9a-f]{8}\b"), "POOL"),
    (re.compile(r"(?<![\w.])\d[\d.]*\s?(ns|us|µs|ms|s)\b"), "TIME"),
    (re.compile(r"(?<![\w.])\d[\d.]*\s?([kMG]?B)\b"), "SIZE"),
    (re.compile(r"[/·A-Z!]{3,}$"), "BAR"),
    (re.compile(r"\d+(\.\d+)?"), "N"),
    (re.compile(r"-{3,}"), "---"),
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True)
class Example:
    """A cell of the page, and what it shows there."""

    code: str
    raises: bool
    output: str

    @property
    def answers(self) -> tuple[str, ...]:
        """What the reader types at the debugger's prompt."""
        lines = self.output.splitlines()
        return tuple(_PROMPT.sub("", line) for line in lines if _PROMPT.match(line))


def sections() -> dict[str, str]:
    """The text of each section of the page, by its magic: ``%ddp start``, ``%%ddp``."""
    _, *parts = _HEADING.split(PAGE.read_text(encoding="utf-8"))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def examples(text: str) -> list[Example]:
    """The examples of a section."""
    return [
        Example(found[2], bool(found[1]), (found[3] or "").rstrip("\n"))
        for found in _EXAMPLE.finditer(text)
    ]


def shown(cell: Cell) -> str:
    """What a cell shows in the end, as text."""
    parts = [message.text.strip("\n") for message in cell.page]
    return "\n".join(line.rstrip() for line in "\n".join(parts).split("\n"))


def run(kernel: Kernel, example: Example) -> str:
    """Run an example; give what it shows."""
    if example.code.startswith("%ddp start"):
        kernel.ok("%ddp stop")  # the pool of this kernel has started with it
    cell = kernel.run(example.code, *example.answers)
    assert cell.status == ("error" if example.raises else "ok"), f"{example.code}\n{shown(cell)}"
    return shown(cell)


def is_alike(output: str, got: str) -> bool:
    """Whether ``got`` is what the page quotes, but for what differs from run to run."""
    pattern = "\n".join(
        r"(.*\n)*?.*" if line == "..." else re.escape(_plain(line))
        for line in output.splitlines()
        if not _PROMPT.match(line)
    )
    plain = "\n".join(_plain(line) for line in got.splitlines())
    return re.fullmatch(pattern, plain) is not None


def _plain(line: str) -> str:
    for pattern, replacement in _VARYING:
        line = pattern.sub(replacement, line)
    return line.strip()


def running() -> Iterator[Kernel]:
    """A kernel for the page, with its clusters, and auto mode off as in any other kernel."""
    with tempfile.TemporaryDirectory(prefix="nbddp-") as folder:
        (clusters,) = _CLUSTERS.findall(PAGE.read_text(encoding="utf-8"))
        (Path(folder) / "clusters.toml").write_text(clusters, encoding="utf-8")
        with running_kernel(*LAUNCH, NBDDP_CONFIG_DIR=folder) as kernel:
            kernel.ok("%ddp auto off")
            yield kernel


def rewritten(text: str, example: Example, got: str) -> str:
    """The page with what an example shows now.

    Raises:
        ValueError: lines at prompts stand between the outputs, and what a kernel shows does not
            have them: the example has to be written by hand.
    """
    if is_alike(example.output, got):
        return text
    if example.answers:
        raise ValueError(f"by hand, between the lines at its prompts:\n{example.code}{got}\n")
    return text.replace(_fences(example, example.output), _fences(example, got))


def _update() -> None:
    by_hand: list[str] = []
    for page in (PAGE, DEBUGGING):
        text = page.read_text(encoding="utf-8")
        for kernel in running():
            for example in examples(text):
                got = run(kernel, example)
                try:
                    text = rewritten(text, example, got)
                except ValueError as error:
                    by_hand.append(f"{page.name}, {error}")
        page.write_text(text, encoding="utf-8")
    if by_hand:
        raise SystemExit("\n".join(by_hand))


def _fences(example: Example, output: str) -> str:
    cell = f"```python{' raises' * example.raises}\n{example.code}```\n"
    return cell + (f"```\n{output}\n```\n" if output else "")


if __name__ == "__main__":
    _update()
