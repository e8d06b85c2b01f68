"""The contract of pure files covers every module that calls itself pure."""

import ast
import re
import tomllib
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_CONTRACT = "pure files do no I/O and read no clock"
#: A sentence of its own: "Pure.", "Pure: no clock, no I/O."
_PURE = re.compile(r"(?:^|\s)Pure(?:[.:;]|, and )", re.MULTILINE)


def covered() -> list[str]:
    """The modules and packages of the contract."""
    with (_ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each["name"] == _CONTRACT)
    return list(contract["source_modules"])


def docstring_of(source: str) -> str:
    return ast.get_docstring(ast.parse(source)) or ""


def is_pure_by_module() -> dict[str, bool]:
    """Whether each module of the package calls itself pure."""
    modules = {}
    for path in (_ROOT / "nbddp").rglob("*.py"):
        name = ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__")
        source = path.read_text(encoding="utf-8")
        # The parser takes long, and few files have the word.
        modules[name] = bool(_PURE.search(source) and _PURE.search(docstring_of(source)))
    return modules


def is_covered(module: str, names: list[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def test_the_contract_covers_the_modules_that_call_themselves_pure():
    names, modules = covered(), is_pure_by_module()
    assert [m for m, is_pure in modules.items() if is_pure and not is_covered(m, names)] == []
    assert set(names) <= modules.keys()
