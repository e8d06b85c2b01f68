"""Rules for the tests themselves."""

import ast
import re
from pathlib import Path

_MAY_IMPORT = re.compile(r"\bimport\b[^#]*\btest_|\btests\.[\w.]*\btest_")
ROOT = Path(__file__).resolve().parents[3]


def imported_modules(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def test_no_test_imports_another_test() -> None:
    files = list((ROOT / "tests").rglob("*.py"))
    assert len(files) > 100
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        if _MAY_IMPORT.search(path.read_text(encoding="utf-8"))  # the parser takes long
        for name in imported_modules(path)
        if name.startswith("tests.") and ".test_" in name
    }
    assert wrong == set()
