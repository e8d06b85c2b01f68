"""``%ddp diff``: which ranks agree, and where the others first differ.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Sequence
from dataclasses import replace

from nbddp.controller.values import Detail, Difference, LeafDifference
from nbddp.notebook.render.html import clean, escape, shorten, size, words
from nbddp.notebook.render.tables import Cell, Column, Table
from nbddp.wire.rank_set import RankSet

#: Places that are shown, and the minimum for gradients; the others are counted.
_MAX_ROWS, _MIN_GRADIENTS = 12, 4
_MAX_GROUPS = 4
_MAX_HAVE = 40
#: Text about locks, files and generators, and about tensors without memory.
_UNKNOWN = "its content cannot be read"


def bundle(difference: Difference) -> dict[str, str]:
    """The difference as a MIME bundle."""
    expression, agreement = difference.expression, verdict(difference)
    notes = _notes(difference)
    table = _table(difference)
    text = [f"{expression}: {agreement}", *([table.text()] if table else []), *notes]
    faint = "".join(f'<div style="opacity:0.7">{escape(note)}</div>' for note in notes)
    return {
        "text/plain": clean("\n".join(text)),
        "text/html": (
            f"<div><code>{escape(expression)}</code>: <b>{escape(agreement)}</b></div>"
            f"{table.html() if table else ''}{faint}"
        ),
    }


def verdict(difference: Difference) -> str:
    """``ranks 0,2-3 agree; rank 1 differs``."""
    text = _agreement_text(difference)
    gradients = difference.gradients
    if gradients is None or not gradients.differs:
        return text
    if not difference.differs:
        text = f"{_noun(difference)} {text}"
    return f"{text}; gradients differ: {_groups(gradients)}"


def _noun(difference: Difference) -> str:
    return "values" if difference.n_values else "weights"


def _groups(difference: Difference) -> str:
    """``ranks 0-1 | 2-3``."""
    names = [str(group) for group in difference.groups[:_MAX_GROUPS]]
    more = "…" if len(difference.groups) > _MAX_GROUPS else ""
    return f"ranks {' | '.join([*names, *([more] if more else [])])}"


def _agreement_text(difference: Difference) -> str:
    if not difference.differs:
        if len(difference.ranks) == 1:
            return f"nothing to compare with: it was read on {difference.ranks.describe()} only"
        if _is_unknown(difference):
            return f"not compared, {_UNKNOWN}"
        limit = " as far as compared" * bool(difference.unknown)
        return f"equal on {difference.ranks.describe()}{limit}"
    without = RankSet.of(rank for ranks in difference.errors.values() for rank in ranks)
    if without:
        with_value = difference.ranks - without
        groups = tuple(group for group in difference.groups if not set(group) & set(without))
        inner = replace(difference, ranks=with_value, groups=groups, errors={})
        where = f"only on {with_value.describe()}"
        return where if len(with_value) == 1 else f"{where}: {_agreement_text(inner)}"
    if all(leaf.kind != "value" for leaf in difference.differences):
        return "; ".join([f"{_noun(difference)} equal", *_structure_lines(difference)])
    return _disagreement(difference)


def _disagreement(difference: Difference) -> str:
    first, *others = difference.groups
    if len(first) == 1:
        if len(difference.ranks) == 2:
            return f"ranks {first} and {others[0]} differ"
        return f"different on each of {difference.ranks.describe()}"
    groups = [f"{first.describe()} agree"]
    apart = [group.ranks[0] for group in others if len(group) == 1]
    together = [group for group in others if len(group) > 1]
    groups += [f"{group.describe()} agree on something else" for group in together[:_MAX_GROUPS]]
    if len(together) > _MAX_GROUPS:
        groups.append(f"{len(together) - _MAX_GROUPS} more groups")
    if len(apart) == 1:
        groups.append(f"rank {apart[0]} differs")
    elif apart:
        groups.append(f"{len(apart)} ranks differ, each in another way: {_list(apart)}")
    return "; ".join(groups)


def _structure_lines(difference: Difference) -> list[str]:
    """``type differs: list / tuple``, ``mode differs: ranks 0 | 1``."""
    lines = []
    types = [leaf for leaf in difference.differences if leaf.kind == "type"]
    if types:
        names = dict.fromkeys(has for _, has in types[0].groups)
        lines.append(f"type differs: {' / '.join(list(names)[:_MAX_GROUPS])}")
    if len(types) < len(difference.differences):
        lines.append(f"train or eval mode differs: {_groups(difference)}")
    return lines


def _list(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks[:8])) + (",…" if len(ranks) > 8 else "")


def _table(difference: Difference) -> Table | None:
    leaves = _shown_leaves(difference)
    if not leaves:
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
    rows = [row for leaf in leaves for row in _rows(difference.expression, leaf)]
    return Table.of_used(columns, rows)


def _shown_leaves(difference: Difference) -> list[LeafDifference]:
    leaves = list(difference.differences[:_MAX_ROWS])
    if difference.gradients is not None:
        leaves += difference.gradients.differences[: max(_MIN_GRADIENTS, _MAX_ROWS - len(leaves))]
    return leaves


def _rows(expression: str, leaf: LeafDifference) -> list[list[Cell]]:
    where = place(expression, leaf.path)
    if leaf.part:
        where += f" ({leaf.part})"
    rows = []
    detail_by_group = {detail.other: detail for detail in leaf.details}
    first = leaf.details[0] if leaf.details else None
    has_odd = len(leaf.groups[0][0]) > 1
    for number, (ranks, text) in enumerate(leaf.groups[:_MAX_GROUPS]):
        name = where if number == 0 else ""
        rank_text = str(ranks) if len(str(ranks)) <= 24 else ranks.describe(limit=24)
        detail = detail_by_group.get(ranks)
        value = ""
        if number == 0 and first is not None:
            value = first.values[0]
        elif detail is not None:
            value = detail.values[1]
        figures = (
            ("", "", "") if detail is None else (_index(detail), _max_abs(detail), _norms(detail))
        )
        index, distance, norms = figures
        row = _row(name, rank_text, shorten(text, _MAX_HAVE), index, value, distance, norms)
        rows.append([replace(cell, is_bold=has_odd and number > 0) for cell in row])
    more = sum(len(ranks) for ranks, _ in leaf.groups[_MAX_GROUPS:])
    if more:
        rows.append(_row("", f"and {more} more", "", "", "", "", ""))
    if leaf.missing:
        name = "" if rows else where
        rows.append(_row(name, str(leaf.missing), "nothing", "", "", "", ""))
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
    """The norms of two tensors that were fetched only in part."""
    one, other = detail.norms
    if detail.is_exact or detail.max_abs is None or one is None or other is None:
        return ""
    return f"{one:.6g} and {other:.6g}"


def _notes(difference: Difference) -> list[str]:
    notes = []
    gradients = difference.gradients
    n_gradients = 0 if gradients is None or _some_lack_gradients(gradients) else gradients.n_tensors
    total = [
        f"{count} {word}{'' if count == 1 else 's'}"
        for count, word in (
            (difference.n_tensors, "tensor"),
            (n_gradients, "gradient"),
            (difference.n_values, "other value" if difference.n_tensors else "value"),
        )
        if count
    ]
    if total:
        nbytes = difference.nbytes + (0 if gradients is None else gradients.nbytes)
        where = "on each rank that has it" if difference.errors else "on each rank"
        notes.append(
            f"{words(total)} {where}{f', {size(nbytes)}' * bool(nbytes)}{_places(difference)}"
        )
    for text, count in difference.sharding.items():
        which = "tensor is" if count == 1 else "tensors are"
        notes.append(f"{count} {which} sharded, {text}: only equal shards are compared")
    for text, ranks in difference.errors.items():
        notes.append(f"no value on {ranks.describe()}: {text}")
    if difference.unknown and not _is_unknown(difference):
        first = place(difference.expression, difference.unknown[0])
        more = f" and {len(difference.unknown) - 1} more" if len(difference.unknown) > 1 else ""
        notes.append(f"not compared, {_UNKNOWN}: {first}{more}")
    if difference.is_cut:
        notes.append("there are more, which were not compared")
    if any(detail.max_abs == 0 for leaf in _shown_leaves(difference) for detail in leaf.details):
        notes.append("equal means the same bits: 0.0 is not -0.0, and there are many NaNs")
    return notes


def _is_unknown(difference: Difference) -> bool:
    """Whether no part of the value could be compared."""
    return len(difference.unknown) >= difference.n_tensors + difference.n_values > 0


def _some_lack_gradients(gradients: Difference) -> bool:
    """Whether some ranks have a gradient where others have none."""
    return any(has == "None" for leaf in gradients.differences for _, has in leaf.groups)


def _places(difference: Difference) -> str:
    """``; they differ in 3 places``."""
    counts = []
    gradients = () if difference.gradients is None else difference.gradients.differences
    for subject, differences in (("they", difference.differences), ("the gradients", gradients)):
        places = len({leaf.path for leaf in differences})
        if places > _MAX_ROWS:
            n_shown = len(
                {leaf.path for leaf in _shown_leaves(difference)}
                & {leaf.path for leaf in differences}
            )
            counts.append(
                f"{subject} differ in {places} places, of which the first {n_shown} are shown"
            )
        elif places and (gradients or difference.n_tensors + difference.n_values > 1):
            counts.append(f"{subject} differ in {places} {'place' if places == 1 else 'places'}")
    return "".join(f"; {leaf}" for leaf in counts)
