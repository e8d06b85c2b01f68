"""``docs/api.md``: the docstrings of the public names, as a page.

``python -m tests.support.api_page`` writes it, for use after a change of a docstring.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from nbddp.controller.pool.pool import Pool
from tests.support.public_api import CLASSES, ERRORS, FUNCTIONS, is_internal, members, text_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"

_INTRODUCTION = """\
# Python API

Everything that the magics do can be called from Python: in a cell without `%%ddp`, in a script,
in a test. `import nbddp` loads neither torch nor IPython. In the examples `pool` is
`nbddp.start(2)` on a machine without a GPU, and `outcome` is what `pool.run` returned last.
`nbddp.show`, `nbddp.sync` and `nbddp.faults.inject` are called on the ranks: in a `%%ddp` cell, or
in the code that `pool.run` gets.

This page has the docstrings of the package: `help(nbddp.start)` shows the same in a notebook. The
tests run the examples. `python -m tests.support.api_page` writes the page.
"""
_SECTION = re.compile(r"^(Args|Returns|Raises|Example|Yields):\n((?:    .*\n?|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^(\*{0,2}\w+): ((?:.*\n?)(?:^ +.*\n?)*)", re.MULTILINE)
_EXAMPLE = re.compile(r"^(>>> (?:.+\n)+)", re.MULTILINE)
_FIELD = re.compile(r"^    (\w+): [^#\n]*(?:#: (.*))?$")
_COMMENT = re.compile(r"^    #: (.*)$")
_WORDS = {"Args": "Arguments", "Raises": "Errors", "Returns": "Returns"}


def page() -> str:
    """The page as it has to be."""
    parts = [_INTRODUCTION, "## Functions\n"]
    for each in FUNCTIONS:
        home = "nbddp.faults" if each.__module__ == "nbddp.faults" else "nbddp"
        parts.append(_described(f"{home}.{each.__name__}", each))
    for kind in CLASSES:
        parts.append(f"## `{kind.__name__}`\n")
        parts.append(_text(kind))
        owner = "pool" if kind is Pool else kind.__name__
        for name, member in members(kind).items():
            if not is_internal(member):
                parts.append(_described(f"{owner}.{name}", member))
    parts.append("## Errors\n\n| Error | Is raised when |\n|---|---|")
    parts += [f"| `{kind.__name__}` | {_first_sentence(kind)} |" for kind in ERRORS]
    parts.append("")
    parts += [
        f"### `{kind.__name__}`\n\n{_text(kind)}" for kind in ERRORS if ">>>" in text_of(kind)
    ]
    return "\n".join(parts).rstrip() + "\n"


def _described(name: str, thing: Any) -> str:
    return f"### `{name}`\n\n{_signature(name, thing)}{_text(thing)}"


def _signature(name: str, thing: Any) -> str:
    if isinstance(thing, property):
        return ""
    call = getattr(thing, "__func__", thing)
    parameters = [
        each.replace(annotation=inspect.Parameter.empty)
        for each in inspect.signature(call).parameters.values()
        if each.name not in ("self", "cls")
    ]
    return f"```python\n{name}{inspect.Signature(parameters)}\n```\n"


def _text(thing: Any) -> str:
    """The docstring as Markdown."""
    text = text_of(thing)
    if isinstance(thing, type):  # users get objects of it, and make none
        text = _SECTION.sub(lambda match: "" if match[1] == "Args" else match[0], text)
    before = _plain(_SECTION.split(text)[0].strip())
    lines = [_EXAMPLE.sub(r"```pycon\n\1```", f"{before}\n").rstrip(), ""]
    if isinstance(thing, type):
        lines += _fields(thing)
    for title, body in _sections(text):
        if title == "Example":
            lines += ["```pycon", body, "```", ""]
        elif title == "Returns":
            lines += [f"Returns: {_plain(_joined(body))}", ""]
        elif title in _WORDS:
            lines += [f"{_WORDS[title]}:", ""]
            lines += [f"- `{name}`: {_plain(_joined(words))}" for name, words in _entries(body)]
            lines.append("")
    return "\n".join(lines)


def _sections(text: str) -> Iterator[tuple[str, str]]:
    for match in _SECTION.finditer(text):
        yield match[1], inspect.cleandoc("\n" + match[2])


def _entries(body: str) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in _ENTRY.finditer(body)]


def _fields(kind: type) -> list[str]:
    """The fields of a dataclass or struct with their comments."""
    if dataclasses.is_dataclass(kind):
        names = {field.name for field in dataclasses.fields(kind)}
    elif issubclass(kind, msgspec.Struct):
        names = set(kind.__struct_fields__)
    else:
        return []
    found, before = [], ""
    for line in inspect.getsource(kind).splitlines():
        if match := _COMMENT.match(line):
            before = f"{before} {match[1]}".strip()
            continue
        match = _FIELD.match(line)
        if match and match[1] in names and not match[1].startswith("_"):
            words = match[2] or before
            found.append(f"- `{match[1]}`: {_plain(words)}" if words else f"- `{match[1]}`")
        before = ""
    return ["Attributes:", "", *found, ""] if found else []


def _first_sentence(kind: type) -> str:
    return _plain(_joined(text_of(kind).split("\n\n")[0]))


def _joined(text: str) -> str:
    return " ".join(text.split())


def _plain(text: str) -> str:
    return text.replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
