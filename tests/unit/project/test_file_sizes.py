"""A file holds one concept, in fewer than 400 lines of code."""

import ast
import io
import tokenize
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
    counts = {path: code_lines(path.read_text(encoding="utf-8")) for path in FILES}
    assert len(counts) > 300
    assert {str(path): count for path, count in counts.items() if count >= LIMIT} == {}


def test_comments_and_docstrings_do_not_count():
    source = '"""Module."""\n\n# why\ndef f():\n    """Doc\n\n    string."""\n    return (\n1\n)\n'
    assert code_lines(source) == 4
