"""Changes of the user's code after which ranks share their data: a sampler, and `set_epoch`.

Runs in: the notebook's process. Pure. A change is suggested only where the syntax tree shows it.
"""

import ast

from nbddp.controller.diagnosis.code_places import called, unwrapped
from nbddp.controller.diagnosis.control_flow import Code, Sources
from nbddp.controller.diagnosis.report import ChangedLine
from nbddp.wire.flight_recorder import Site

#: Cells before that of a loader in which an import is looked for.
_CELLS = 50
_IMPORT = "from torch.utils.data import DistributedSampler"


def with_sampler(code: Code, line: int, *, is_imported: bool = False) -> tuple[ChangedLine, ...]:
    """Give a loader a `DistributedSampler`.

    Args:
        code: the text of a cell or file.
        line: of the ``DataLoader(...)``.
        is_imported: the ranks have its name already, see `has_sampler`.

    Returns:
        The line before and after the change; none if the call is not simple enough.
    """
    call = next((each for each in _calls(code, line) if called(each) == "DataLoader"), None)
    if call is None or call.lineno != call.end_lineno or not 0 < len(call.args) < 3:
        return ()
    options = {keyword.arg: keyword for keyword in call.keywords}
    data = call.args[0]
    if not isinstance(data, ast.Name) or not {"sampler", "batch_sampler", None}.isdisjoint(options):
        return ()
    shuffle = options.get("shuffle")
    if shuffle is not None and not isinstance(shuffle.value, ast.Constant):
        return ()
    shuffles = shuffle is not None and bool(shuffle.value.value)  # type: ignore[attr-defined]
    is_known = is_imported or code.mentions("DistributedSampler") or "import *" in code.text
    function = call.func
    prefix = ast.unparse(function.value) + "." if isinstance(function, ast.Attribute) else ""
    order = "" if shuffles else ", shuffle=False"
    sampler = f"sampler={prefix}DistributedSampler({data.id}{order})"
    before = code.source(call.lineno)
    text = before.encode()
    if shuffle is not None:
        begin, end = shuffle.col_offset, shuffle.end_col_offset or 0
        after = text[:begin] + sampler.encode() + text[end:]
    else:
        parts = [*call.args, *(keyword.value for keyword in call.keywords)]
        end = max(each.end_col_offset or 0 for each in parts)
        after = text[:end] + f", {sampler}".encode() + text[end:]
    indent = " " * (len(before) - len(before.lstrip()))
    imported = () if prefix or is_known else (ChangedLine("added", 0, f"{indent}{_IMPORT}"),)
    changed = ChangedLine("added", 0, after.decode())
    return (ChangedLine("removed", call.lineno, before), *imported, changed)


def has_sampler(site: Site, sources: Sources) -> bool:
    """Return whether the ranks have surely imported `DistributedSampler` in an earlier cell.

    A cell before a restart says nothing. The search ends at the newest cell that imports
    `DataLoader`: that cell ran after the restart, and so did every cell between. If none of the
    last `_CELLS` cells imports it, the answer is False.

    Args:
        site: a line of a cell that uses a name which an earlier cell has imported.
        sources: the code.
    """
    has_it = False
    for cell in range(site.cell, max(0, site.cell - 1 - _CELLS), -1):
        code = sources(Site("", 1, "<module>", "", cell))
        names = _imported(code) if code is not None else set()
        has_it = has_it or ("DistributedSampler" in names and cell < site.cell)
        if "DataLoader" in names:
            return has_it
    return False


def _imported(code: Code) -> set[str]:
    """The names that the statements of a cell import from modules."""
    imports = (each for each in code.statements if isinstance(each, ast.ImportFrom))
    return {alias.asname or alias.name for each in imports for alias in each.names}


def with_set_epoch(code: Code, line: int) -> tuple[ChangedLine, ...]:
    """Call `set_epoch` before a loop over a loader, with the variable of the loop around it.

    Args:
        code: the text of a cell or file.
        line: of the loop over the loader.

    Returns:
        The lines before and after the change; none if there is no such loop around it.
    """
    loops = _loops(ast.Module(code.statements, []), line)
    if len(loops) < 2 or code.mentions("batch_sampler"):
        return ()
    outer, inner = loops[-2:]
    items = unwrapped(inner.iter)
    target = outer.target
    is_named = isinstance(target, ast.Name) and target.id != "_"
    if not isinstance(items, ast.Name) or not is_named or inner not in outer.body:
        return ()
    name = target.id  # type: ignore[attr-defined]
    added = f"{' ' * inner.col_offset}{items.id}.sampler.set_epoch({name})"
    return (
        ChangedLine("same", outer.lineno, code.source(outer.lineno)),
        ChangedLine("added", 0, added),
        ChangedLine("same", inner.lineno, code.source(inner.lineno)),
    )


def _calls(code: Code, line: int) -> list[ast.Call]:
    nodes = ast.walk(ast.Module(code.statements, []))
    return [
        node
        for node in nodes
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0)
    ]


def _loops(node: ast.AST, line: int) -> list[ast.For]:
    """The ``for`` that begins at a line, behind those around it in the same function."""
    for child in ast.iter_child_nodes(node):
        begin, end = getattr(child, "lineno", 0), getattr(child, "end_lineno", 0)
        if begin and not begin <= line <= (end or 0):
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return _loops(child, line)
        if isinstance(child, ast.For):
            if child.lineno == line:
                return [child]
            inner = _loops(child, line)
            return [child, *inner] if inner else []
        inner = _loops(child, line)
        if inner:
            return inner
    return []
