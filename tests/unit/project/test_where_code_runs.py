"""docs/security.md lists every place where bytes become code, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_NAMES = {"eval", "exec", "compile", "__import__"}
_METHODS = {
    "import_module",
    "run_cell",
    "load",
    "loads",
    "Unpickler",
    "dumps",
    "Pickler",
    "run_code",
}
_MODULES = {
    "pickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "torch",
    "importlib",
    "_shell",
    "shell",
}

_MAY_RUN = re.compile(rf"\b({'|'.join(_NAMES | _METHODS)})\b")


def places() -> set[str]:
    """Files with a call that runs, imports or unpickles what it is given."""
    found = set()
    for path in (_ROOT / "nbddp").rglob("*.py"):
        source = path.read_text()
        # The parser takes long, and few files have such a word.
        has_call = _MAY_RUN.search(source) and any(map(_is_such, ast.walk(ast.parse(source))))
        if has_call or "__import__(" in source:
            found.add(str(path.relative_to(_ROOT)))
    return found


def _is_such(node: ast.AST) -> bool:
    if isinstance(node, ast.ClassDef):
        return any(_is_of_pickle(base) for base in node.bases)
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Name):
        return called.id in _NAMES
    return isinstance(called, ast.Attribute) and called.attr in _METHODS and _is_of_such(called)


def _is_of_such(called: ast.Attribute) -> bool:
    owner = called.value
    name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
    return name in _MODULES


def _is_of_pickle(base: ast.expr) -> bool:
    return isinstance(base, ast.Attribute) and base.attr in ("Unpickler", "Pickler")


def told() -> Iterator[str]:
    """Files of the table; one without a folder is in that of the one before."""
    text = (_ROOT / "docs" / "security.md").read_text()
    rows = text.partition("## Where bytes become code")[2].partition("### The debugger")[0]
    for row in rows.splitlines():
        folder = ""
        for name in re.findall(r"`([\w/]+\.py)`", row.split("|")[1] if row.startswith("|") else ""):
            folder = name.rpartition("/")[0] or folder
            yield name if "/" in name else f"{folder}/{name}"


def test_every_place_is_told():
    assert places() == set(told())


def test_the_store_is_never_unpickled():
    """Data that any user of the machine can write must never run as code."""
    for path in (_ROOT / "nbddp" / "rank").rglob("*.py"):
        if "pickle" in path.read_text():
            assert path.name == "traversal.py", path


def test_links_lead_to_it():
    for name in ("README.md", "docs/architecture.md"):
        assert "security.md" in (_ROOT / name).read_text()
