"""``%ddp diff``: who agrees with whom, and where the others first differ.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Sequence
from dataclasses import replace

from nbddp.controller.values.result import Detail, Difference, LeafDifference
from nbddp.notebook.render.html import (
    Cell,
    Column,
    Table,
    clean,
    escape,
    name_ranks,
    shorten,
    size,
    words,
)
from nbddp.wire.rank_set import RankSet

#: Places that are shown; the others are counted. Of gradients at least so many.
_MAX_ROWS, _MIN_GRADIENTS = 12, 4
_MAX_GROUPS = 4
_MAX_HAVE = 40
#: Of locks, files and generators, and of tensors without memory.
_UNKNOWN = "nothing tells what is in it"


def bundle(found: Difference) -> dict[str, str]:
    """The answer as text and as HTML."""
    head = f"{found.expression}: {verdict(found)}"
    notes = _notes(found)
    table = _table(found)
    text = [head, *([table.text()] if table else []), *notes]
    faint = "".join(f'<div style="opacity:0.7">{escape(note)}</div>' for note in notes)
    return {
        "text/plain": clean("\n".join(text)),
        "text/html": (
            f"<div><code>{escape(found.expression)}</code>: <b>{escape(verdict(found))}</b></div>"
            f"{table.html() if table else ''}{faint}"
        ),
    }


def verdict(found: Difference) -> str:
    """``ranks 0,2-3 agree; rank 1 differs``."""
    said = _said(found)
    gradients = found.gradients
    if gradients is None or not gradients.differs:
        return said
    if not found.differs:
        said = f"{_noun(found)} {said}"
    return f"{said}; gradients differ: {_groups(gradients)}"


def _noun(found: Difference) -> str:
    return "values" if found.n_values else "weights"


def _groups(found: Difference) -> str:
    """``ranks 0-1 | 2-3``."""
    shown = [str(group) for group in found.groups[:_MAX_GROUPS]]
    more = "…" if len(found.groups) > _MAX_GROUPS else ""
    return f"ranks {' | '.join([*shown, *([more] if more else [])])}"


def _said(found: Difference) -> str:
    if not found.differs:
        if len(found.ranks) == 1:
            return f"nothing to compare with: it was looked at on {found.ranks.describe()} only"
        if _is_unknown(found):
            return f"not compared, {_UNKNOWN}"
        limit = " as far as compared" * bool(found.unknown)
        return f"equal on {found.ranks.describe()}{limit}"
    without = RankSet.of(rank for ranks in found.errors.values() for rank in ranks)
    if without:
        with_value = found.ranks - without
        groups = tuple(group for group in found.groups if not set(group) & set(without))
        inner = replace(found, ranks=with_value, groups=groups, errors={})
        where = f"only on {with_value.describe()}"
        return where if len(with_value) == 1 else f"{where}: {_said(inner)}"
    if all(each.kind != "value" for each in found.differences):
        return "; ".join([f"{_noun(found)} equal", *_outline(found)])
    return _who_agrees(found)


def _who_agrees(found: Difference) -> str:
    first, *others = found.groups
    if len(first) == 1:
        if len(found.ranks) == 2:
            return f"ranks {first} and {others[0]} differ"
        return f"different on each of {name_ranks(found.ranks)}"
    said = [f"{name_ranks(first)} agree"]
    apart = [group.ranks[0] for group in others if len(group) == 1]
    together = [group for group in others if len(group) > 1]
    said += [f"{name_ranks(group)} agree on something else" for group in together[:_MAX_GROUPS]]
    if len(together) > _MAX_GROUPS:
        said.append(f"{len(together) - _MAX_GROUPS} more groups")
    if len(apart) == 1:
        said.append(f"rank {apart[0]} differs")
    elif apart:
        said.append(f"{len(apart)} ranks differ, each in another way: {_list(apart)}")
    return "; ".join(said)


def _outline(found: Difference) -> list[str]:
    """``type differs: list / tuple``, ``mode differs: ranks 0 | 1``."""
    said = []
    types = [each for each in found.differences if each.kind == "type"]
    if types:
        names = dict.fromkeys(has for _, has in types[0].groups)
        said.append(f"type differs: {' / '.join(list(names)[:_MAX_GROUPS])}")
    if len(types) < len(found.differences):
        said.append(f"train or eval mode differs: {_groups(found)}")
    return said


def _list(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks[:8])) + (",…" if len(ranks) > 8 else "")


def _table(found: Difference) -> Table | None:
    shown = _shown(found)
    if not shown:
        return None
    columns = [
        Column("where", cut="middle"),
        Column("ranks"),
        Column("have", cut="end"),
        Column("first at"),
        Column("value there", cut="end"),
        Column("max abs difference", "right"),
        Column("norms", cut="end"),
    ]
    rows = [row for difference in shown for row in _rows(found.expression, difference)]
    used = [any(row[at].text for row in rows) for at in range(len(columns))]
    return Table(
        [column for column, is_used in zip(columns, used, strict=True) if is_used],
        [[cell for cell, is_used in zip(row, used, strict=True) if is_used] for row in rows],
    )


def _shown(found: Difference) -> list[LeafDifference]:
    shown = list(found.differences[:_MAX_ROWS])
    if found.gradients is not None:
        shown += found.gradients.differences[: max(_MIN_GRADIENTS, _MAX_ROWS - len(shown))]
    return shown


def _rows(expression: str, difference: LeafDifference) -> list[list[Cell]]:
    where = place(expression, difference.path)
    if difference.part:
        where += f" ({difference.part})"
    rows = []
    detail_by_group = {detail.other: detail for detail in difference.details}
    first = difference.details[0] if difference.details else None
    has_odd = len(difference.groups[0][0]) > 1
    for number, (ranks, text) in enumerate(difference.groups[:_MAX_GROUPS]):
        name = where if number == 0 else ""
        who = str(ranks) if len(str(ranks)) <= 24 else name_ranks(ranks, 24)
        detail = detail_by_group.get(ranks)
        value = ""
        if number == 0 and first is not None:
            value = first.values[0]
        elif detail is not None:
            value = detail.values[1]
        found = (
            ("", "", "") if detail is None else (_index(detail), _max_abs(detail), _norms(detail))
        )
        index, distance, norms = found
        row = _row(name, who, shorten(text, _MAX_HAVE), index, value, distance, norms)
        rows.append([replace(cell, is_bold=has_odd and number > 0) for cell in row])
    more = sum(len(ranks) for ranks, _ in difference.groups[_MAX_GROUPS:])
    if more:
        rows.append(_row("", f"and {more} more", "", "", "", "", ""))
    if difference.missing:
        name = "" if rows else where
        rows.append(_row(name, str(difference.missing), "nothing", "", "", "", ""))
    return rows


def place(expression: str, path: str) -> str:
    """``model.0.weight``."""
    simple = expression.isidentifier() or expression.endswith((")", "]", "}")) or not path
    return f"{expression}{path}" if simple else f"({expression}){path}"


def _row(*texts: str) -> list[Cell]:
    return [Cell(text) for text in texts]


def _index(detail: Detail) -> str:
    if not detail.index:
        return ""  # not found, or a tensor of one number
    return f"[{', '.join(map(str, detail.index))}]"


def _max_abs(detail: Detail) -> str:
    if detail.max_abs is None:
        return ""
    text = f"{detail.max_abs:.3g}"
    return text if detail.is_exact else f"at least {text}"


def _norms(detail: Detail) -> str:
    """Where not all of the tensor was fetched."""
    one, other = detail.norms
    if detail.is_exact or detail.max_abs is None or one is None or other is None:
        return ""
    return f"{one:.6g} and {other:.6g}"


def _notes(found: Difference) -> list[str]:
    notes = []
    gradients = found.gradients
    n_gradients = 0 if gradients is None or _has_none(gradients) else gradients.n_tensors
    total = [
        f"{count} {word}{'' if count == 1 else 's'}"
        for count, word in (
            (found.n_tensors, "tensor"),
            (n_gradients, "gradient"),
            (found.n_values, "other value" if found.n_tensors else "value"),
        )
        if count
    ]
    if total:
        nbytes = found.nbytes + (0 if gradients is None else gradients.nbytes)
        notes.append(
            f"{words(total)} on each rank{f', {size(nbytes)}' * bool(nbytes)}{_places(found)}"
        )
    for text, count in found.sharding.items():
        which = "tensor is" if count == 1 else "tensors are"
        notes.append(f"{count} {which} sharded, {text}: only equal shards are compared")
    for text, ranks in found.errors.items():
        notes.append(f"no value on {ranks.describe()}: {text}")
    if found.unknown and not _is_unknown(found):
        first = place(found.expression, found.unknown[0])
        more = f" and {len(found.unknown) - 1} more" if len(found.unknown) > 1 else ""
        notes.append(f"not compared, {_UNKNOWN}: {first}{more}")
    if found.is_cut:
        notes.append("there are more, which were not looked at")
    if any(detail.max_abs == 0 for each in _shown(found) for detail in each.details):
        notes.append("equal means the same bits: 0.0 is not -0.0, and there are many NaNs")
    return notes


def _is_unknown(found: Difference) -> bool:
    """Whether nothing of it could be compared."""
    return len(found.unknown) >= found.n_tensors + found.n_values > 0


def _has_none(gradients: Difference) -> bool:
    """Whether some ranks have a gradient where others have none."""
    return any(has == "None" for each in gradients.differences for _, has in each.groups)


def _places(found: Difference) -> str:
    """``; they differ in 3 places``."""
    said = []
    gradients = () if found.gradients is None else found.gradients.differences
    for who, differences in (("they", found.differences), ("the gradients", gradients)):
        places = len({each.path for each in differences})
        if places > _MAX_ROWS:
            shown = len({each.path for each in _shown(found)} & {each.path for each in differences})
            said.append(f"{who} differ in {places} places, of which the first {shown} are shown")
        elif places and (gradients or found.n_tensors + found.n_values > 1):
            said.append(f"{who} differ in {places} {'place' if places == 1 else 'places'}")
    return "".join(f"; {each}" for each in said)
