"""``docs/modules.md``: every module with the first sentence of its docstring.

``python -m tests.support.modules_page`` writes it, for use after a change of such a sentence.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
PAGE = _ROOT / "docs" / "modules.md"

_INTRODUCTION = """\
# Modules

Every module of the package, with the first sentence of its docstring: for contributors who search a
home by a word. [architecture.md](architecture.md) says how the packages work together, and with
which file to begin. `python -m tests.support.modules_page` writes this page.
"""


def page() -> str:
    """The page as it has to be."""
    parts = [_INTRODUCTION]
    for package in _packages():
        name = package.relative_to(_ROOT).as_posix()
        parts.append(f"## `{name}`\n\n{_first_sentence(package / '__init__.py')}\n")
        modules = [
            each for each in sorted(package.glob("*.py")) if not each.name.startswith("__init__")
        ]
        if modules:
            parts.append("| module | holds |\n|---|---|")
            parts += [f"| `{each.name}` | {_first_sentence(each)} |" for each in modules]
            parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _packages() -> Iterator[Path]:
    for each in sorted((_ROOT / "nbddp").rglob("__init__.py")):
        yield each.parent


def _first_sentence(module: Path) -> str:
    """As a cell of a table: one line, with code as Markdown has it."""
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
    if not text:
        raise ValueError(f"{module} has no docstring")
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
