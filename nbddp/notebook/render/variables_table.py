"""``%ddp vars``: the same names on all ranks, one row where they are equal.

Runs in: the notebook's process. Pure.
"""

import dataclasses
from collections.abc import Mapping

from msgspec import structs

from nbddp.controller.values import by_name_and_rank
from nbddp.notebook.render.html import escape
from nbddp.notebook.render.tables import Cell, Column, Table
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values.value_questions import Variable, Variables

#: Groups of ranks that are shown for one name.
_MAX_GROUPS = 6
_COLUMNS = [
    Column("name"),
    Column("ranks"),
    Column("type"),
    Column("shape"),
    Column("dtype"),
    Column("device"),
    Column("value", min_px=120, wraps=True),
]


def bundle(
    variables: Mapping[int, Variables], names: tuple[str, ...], world_size: int | None = None
) -> dict[str, str]:
    """The table as a MIME bundle.

    Args:
        variables: the answer of each rank that was asked.
        names: the names that were asked for; empty: all.
        world_size: ranks of the pool, of which some may not have been asked; None: not known.
    """
    ranks = RankSet.of(variables)
    by_name = by_name_and_rank(variables, names)
    if not by_name:
        text = f"{ranks.describe()} {ranks.verb('has', 'have')} no variables"
        return {"text/plain": text, "text/html": f"<div>{escape(text)}</div>"}
    is_all = len(ranks) > 1 and world_size in (None, len(ranks))
    word = "all" if is_all else ranks.numbers(18)
    rows = [row for name, by_rank in by_name.items() for row in _rows(name, by_rank, ranks, word)]
    table = Table.of_used(_COLUMNS, rows)
    left_out = max(answer.left_out for answer in variables.values())
    note = f"and {left_out} older names; %ddp vars NAME shows one" if left_out else ""
    return {
        "text/plain": "\n".join(part for part in (table.text(), note) if part),
        "text/html": table.html() + (f'<div style="opacity:0.7">{escape(note)}</div>' * bool(note)),
    }


def groups_of(by_rank: Mapping[int, Variable | None]) -> list[tuple[RankSet, Variable | None]]:
    """Group the ranks that have equal variables, the largest group first; devices may differ."""
    groups: dict[object, list[int]] = {}
    for rank, variable in by_rank.items():
        key: object = None
        if variable is not None:
            key = structs.replace(variable, device="")
            if variable.sharding:  # shards and their sizes differ by design
                key = structs.replace(key, shape="", value="")
        groups.setdefault(key, []).append(rank)
    ordered = sorted(groups.values(), key=lambda ranks: (-len(ranks), ranks[0]))
    return [(RankSet.of(ranks), by_rank[ranks[0]]) for ranks in ordered]


def _rows(
    name: str, by_rank: Mapping[int, Variable | None], ranks: RankSet, word: str
) -> list[list[Cell]]:
    """The rows of a name; one row, with ``word`` for all ``ranks``, if the variable is equal."""
    groups = groups_of(by_rank)
    if len(groups) == 1:
        variable = groups[0][1]
        if variable is None:
            return [_row(name, "none", None, "")]
        return [_row(name, word, variable, _devices(by_rank, ranks))]
    # Data differs on all ranks by design; an odd rank among equal ones deserves attention.
    has_odd = len(groups[0][0]) > 1
    rows = []
    for number, (group, variable) in enumerate(groups[:_MAX_GROUPS]):
        row = _row(
            "" if number else name,
            group.numbers(18),
            variable,
            _devices(by_rank, group),
        )
        is_odd = has_odd and number > 0
        first = groups[0][1]
        if (
            number
            and variable
            and first
            and structs.replace(variable, digest="") == structs.replace(first, digest="")
        ):
            row[-1] = Cell(f"other values than on {groups[0][0].describe(limit=24)}")
        rows.append([dataclasses.replace(cell, is_bold=is_odd) for cell in row])
    more = sum(len(group) for group, _ in groups[_MAX_GROUPS:])
    if more:
        rows.append([Cell(""), Cell(f"and {more} more ranks"), *[Cell("")] * (len(_COLUMNS) - 2)])
    return rows


def _row(name: str, ranks: str, variable: Variable | None, device: str) -> list[Cell]:
    if variable is None:
        return [Cell(name), Cell(ranks), Cell("not there"), *[Cell("")] * (len(_COLUMNS) - 3)]
    value = variable.sharding or variable.value
    if not variable.digest:
        value = f"{value} (not compared)".strip()
    fields = [variable.type, variable.shape, variable.dtype, device, value]
    return [Cell(name), Cell(ranks), *map(Cell, fields)]


def _devices(by_rank: Mapping[int, Variable | None], ranks: RankSet) -> str:
    devices = list(
        dict.fromkeys(variable.device for rank in ranks if (variable := by_rank[rank]) is not None)
    )
    return devices[0] if len(devices) == 1 else f"{devices[0]} … {devices[-1]}" if devices else ""
