"""Every relative link in a Markdown file leads to a file, and every anchor to a heading."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SKIPPED = {"build", "dist", "out", "node_modules"}  # made by commands, or not ours

INLINE = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
REFERENCE = re.compile(r"^\[[^\]]+\]:\s*<?(\S+?)>?(?:\s|$)", re.MULTILINE)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
NAMED_FILE = re.compile(
    r"(?<![\w/.-])((?:tests|nbddp|docs|notebooks)/[\w/]+\.(?:py|md|ipynb|toml|json|png))"
)
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#+\s+(.+?)\s*#*$", re.MULTILINE)


def markdown_files() -> list[Path]:
    return sorted(
        path
        for path in ROOT.rglob("*.md")
        if not any(
            part in SKIPPED or (part.startswith(".") and part != ".github")
            for part in path.relative_to(ROOT).parts
        )
    )


def links(text: str) -> Iterator[str]:
    prose = CODE.sub("", FENCE.sub("", text))
    for pattern in (INLINE, REFERENCE):
        yield from pattern.findall(prose)


def anchors(text: str) -> set[str]:
    """The names that GitHub gives to the headings."""
    headings = HEADING.findall(FENCE.sub("", text))
    return {
        re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")
        for heading in headings
    }


def problem(link: str, source: Path) -> str:
    """The reason why a link is dead; empty if it works, or leads out of the repository."""
    if re.match(r"[a-z][a-z0-9+.-]*:", link):
        return ""
    place, _, anchor = link.partition("#")
    target = (source.parent / place).resolve() if place else source
    if not target.exists():
        return "no such file"
    if not target.is_relative_to(ROOT):
        return "leads out of the repository"
    if anchor and target.suffix == ".md":
        known = anchors(target.read_text(encoding="utf-8"))
        return "" if anchor in known else f"no such heading; there are {sorted(known)}"
    return ""


@pytest.mark.parametrize("path", markdown_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_are_alive(path: Path) -> None:
    dead = {
        link: reason
        for link in links(path.read_text(encoding="utf-8"))
        if (reason := problem(link, path))
    }
    assert not dead


@pytest.mark.parametrize("path", markdown_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_of_the_repository_that_a_page_names_exist(path: Path) -> None:
    named = set(NAMED_FILE.findall(path.read_text(encoding="utf-8")))
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]


def test_dead_links_are_found(tmp_path: Path) -> None:
    text = "[a](gone.md) `[b](code.md)` ![c](<gone.png>)\n\n```\n[d](fence.md)\n```\n[e]: gone.txt"
    source = tmp_path / "page.md"
    assert list(links(text)) == ["gone.md", "gone.png", "gone.txt"]
    assert {problem(link, source) for link in links(text)} == {"no such file"}
    assert problem("https://example.org/x", source) == ""


def test_anchors_are_those_of_github() -> None:
    assert anchors("# `%%ddp` on 4 ranks, live\n```\n# no\n```\n") == {"ddp-on-4-ranks-live"}


def test_the_index_lists_every_decision() -> None:
    pages = [path for path in (ROOT / "docs/decisions").glob("*.md") if path.name != "README.md"]
    titles = [title for path in pages for title in re.findall(r"(?m)^## (.+)$", path.read_text())]
    numbers = sorted(int(title.split(".")[0]) for title in titles)
    index = (ROOT / "docs/decisions/README.md").read_text()
    rows = [tuple(row) for row in re.findall(r"(?m)^\| (\d+) \| \[(.+)\]\(", index)]
    assert sorted(f"{number}. {title}" for number, title in rows) == sorted(titles)
    assert [int(number) for number, _ in rows] == numbers == sorted(set(numbers))
