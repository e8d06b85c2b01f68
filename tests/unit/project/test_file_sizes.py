"""A file holds one concept, in fewer than 400 lines of code."""

import ast
import io
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LIMIT = 400
FILES = [*(ROOT / "nbddp").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """Count the lines that hold more than a comment or a docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                lines.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(lines)


def test_no_file_is_larger():
    sources = {path: path.read_text(encoding="utf-8") for path in FILES}
    assert len(sources) > 300
    # Most have fewer lines of any kind: to count those of code takes 7 s for all of them.
    long = {path: source for path, source in sources.items() if source.count("\n") >= LIMIT}
    counts = {path: code_lines(source) for path, source in long.items()}
    assert {str(path): count for path, count in counts.items() if count >= LIMIT} == {}


def test_comments_and_docstrings_do_not_count():
    source = '"""Module."""\n\n# why\ndef f():\n    """Doc\n\n    string."""\n    return (\n1\n)\n'
    assert code_lines(source) == 4


# --- small files ---------------------------------------------------------------------------------

SMALL = 60
PACKAGE = ROOT / "nbddp"
#: The name of each module, with its file.
FILE_BY_MODULE = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


def imported(path: Path) -> set[str]:
    """The modules of nbddp that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names & set(FILE_BY_MODULE)


def small_files() -> set[str]:
    """The files with fewer than `SMALL` lines of code that one file or none imports.

    The face of a package imports modules for many others.
    """
    importers: dict[str, set[Path]] = {name: set() for name in FILE_BY_MODULE}
    for path in FILE_BY_MODULE.values():
        for name in imported(path):
            importers[name].add(path)
    return {
        str(path.relative_to(PACKAGE))
        for name, path in FILE_BY_MODULE.items()
        if not path.name.startswith("__")
        and len(importers[name]) <= 1
        and not any(
            importer.name == "__init__.py" and importer.parent == path.parent
            for importer in importers[name]
        )
        and code_lines(path.read_text(encoding="utf-8")) < SMALL
    }


def test_a_small_file_that_one_other_imports_has_a_reason():
    tables = tomllib.loads(Path(__file__).with_name("small_files.toml").read_text(encoding="utf-8"))
    listed = [file for table in tables.values() for file in table["files"]]
    assert all(table["reason"] for table in tables.values())
    assert len(set(listed)) == len(listed)
    assert small_files() - set(listed) == set()
    assert {file for file in listed if not (PACKAGE / file).is_file()} == set()
