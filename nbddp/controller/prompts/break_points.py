"""The break points of a pool, and how often ranks have stopped at each: ``%ddp break``.

Runs in: the notebook's process, one thread at a time. Pure.
"""

import difflib
import itertools
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec

from nbddp.controller.diagnosis import GroupRef
from nbddp.errors import BadOptionError
from nbddp.wire.break_points import BreakEvent, BreakPoint, group_names
from nbddp.wire.fault_grammar import OPERATIONS
from nbddp.wire.flight_recorder import GroupInfo
from nbddp.wire.messages import InputRequest
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet, ranks_by

_LEGAL = (
    "an operation such as all_reduce, the number of a collective such as #17, `line 7`, --group, "
    "--if, --nan, --on"
)
#: Groups that are named at most.
_MAX_PASSED = 3


class BreakPoints:
    """The break points that are set; they hold until they are cleared."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._points: dict[int, BreakPoint] = {}
        self._hits: dict[int, Counter[Rank]] = {}
        self._seen: set[tuple[str, Rank, int]] = set()

    def __bool__(self) -> bool:
        return bool(self._points)

    def add(
        self,
        words: Sequence[str],
        *,
        ranks: RankSet = NO_RANKS,
        group: str = "",
        condition: str = "",
        has_nan: bool = False,
        cell: int = 0,
        on: BreakEvent = "",
    ) -> BreakPoint:
        """Set a break point.

        Args:
            words: such as ``all_reduce``, ``#17``, ``line``, ``7``; all must be true.
            ranks: ranks that stop; empty: all.
            group: name or description of the group; empty: any.
            condition: an expression of Python; empty: none.
            has_nan: only if the rank sends NaN or Inf.
            cell: the cell of the line; 0: the one that runs.
            on: an event instead of a place.

        Raises:
            BadOptionError: the words are not legal, or the condition is not an expression.
        """
        if on and (words or group or condition or has_nan or cell):
            raise BadOptionError(
                f"%ddp break: --on {on} takes no place and no condition. Next: %ddp break --on "
                f"{on}, for some ranks with -r"
            )
        if on == "deadlock" and ranks:
            raise BadOptionError(
                "%ddp break: --on deadlock stops all ranks of a cell. Next: leave out -r"
            )
        facts = _read(words)
        if not (words or group or condition or has_nan or on):
            raise BadOptionError(
                f"%ddp break needs a place; legal: {_LEGAL}. %ddp breaks lists those that are set"
            )
        if cell and "line" not in facts:
            raise BadOptionError("%ddp break: --cell says where a line is. Next: add `line 7`")
        if condition:
            try:
                compile(condition, "<break>", "eval")
            except (SyntaxError, ValueError) as error:
                fault = getattr(error, "msg", error)  # without the line of a file
                raise BadOptionError(
                    f"%ddp break: --if {condition!r} is not an expression ({fault}). "
                    "Next: --if 'rank == 2 and loss.isnan()', in quotes"
                ) from None
        point = msgspec.convert(
            {
                **facts,
                "number": next(self._numbers),
                "ranks": ranks.ranks,
                "group": group,
                "condition": condition,
                "has_nan": has_nan,
                "cell": cell,
                "on": on,
            },
            BreakPoint,
        )
        self._points[point.number] = point
        self._hits[point.number] = Counter()
        return point

    def clear(self, numbers: Sequence[int] = ()) -> tuple[BreakPoint, ...]:
        """Remove break points, and return them.

        Args:
            numbers: of those to remove; empty: all.

        Raises:
            BadOptionError: there is no such number; nothing was removed.
        """
        unknown = sorted(set(numbers) - self._points.keys())
        if unknown:
            legal = f"legal: {', '.join(map(str, self._points))}. Next: %ddp breaks lists them"
            if not self._points:
                legal = "none is set. Next: %ddp break all_reduce, for example, sets one"
            raise BadOptionError(f"%ddp clear: no break point {unknown[0]}; {legal}")
        chosen = dict.fromkeys(numbers) or list(self._points)
        return tuple(self._points.pop(number) for number in chosen)

    def of_cell(self) -> tuple[BreakPoint, ...]:
        """Return the break points of a cell that begins."""
        self._seen.clear()
        return tuple(self._points.values())

    def note(self, request: InputRequest) -> None:
        """Count a stop; a rank that asks again at the same one does not count."""
        points = request.break_points
        if request.is_stuck:
            points = tuple(n for n, point in self._points.items() if point.on == "deadlock")
        if not points:
            return
        stop = request.stop  # None: an error, of which a cell has one
        key = (request.run_id, request.rank, 0 if stop is None else stop.time_created_ns)
        if key in self._seen:
            return
        self._seen.add(key)
        for number in points:
            if number in self._hits:
                self._hits[number][request.rank] += 1

    @property
    def points(self) -> tuple[BreakPoint, ...]:
        """The break points that are set."""
        return tuple(self._points.values())

    def listing(self, passed_numbers: Collection[int] = ()) -> str:
        """Return a row for each break point: its number, the operations, the stops so far.

        Args:
            passed_numbers: of break points to which no rank can come any more.
        """
        if not self._points:
            return "no break points are set. Next: %ddp break all_reduce"
        rows = [("no.", "ranks stop before", "hits")]
        for number, point in self._points.items():
            by_count = ranks_by((count, rank) for rank, count in sorted(self._hits[number].items()))
            hits = ", ".join(f"{count} on {ranks.describe()}" for count, ranks in by_count.items())
            if point.on == "deadlock":  # a rank that has ended the cell answers at its prompt, too
                hits = str(max(self._hits[number].values(), default="none"))
            gone = "; its number has passed" if number in passed_numbers else ""
            rows.append((str(number), str(point), f"{hits or 'none'}{gone}"))
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(
            f"{no:<{widths[0]}}  {what:<{widths[1]}}  {hits}" for no, what, hits in rows
        )


def passed(point: BreakPoint, groups: Mapping[Rank, Sequence[GroupInfo]]) -> str:
    """Say that the number of a break point has passed; empty: ranks may still come to it.

    Args:
        point: the break point.
        groups: the groups of each rank, with the number of collectives so far.
    """
    counts = _counts(point, groups)
    last = {g: max(numbers) for g, numbers in counts.items() if min(numbers) >= point.collective}
    if not point.collective or not last:
        return ""
    parts = [f"{group.label} is at #{number}" for group, number in last.items()]
    more = len(parts) - _MAX_PASSED
    where = [*parts[:_MAX_PASSED], *([f"{more} more groups have passed it"] if more > 0 else [])]
    others = "; other groups may still come to it" if len(last) < len(counts) else ""
    op = f"{point.op} " if point.op else ""
    group = f" --group {shlex.quote(point.group)}" if point.group else ""
    return (
        f"#{point.collective} has passed already: {', '.join(where)}, and numbers only grow"
        f"{others}. Next: %ddp break {op}#{max(last.values()) + 1}{group}, or a higher number"
    )


def can_come(point: BreakPoint, groups: Mapping[Rank, Sequence[GroupInfo]]) -> bool:
    """Whether a rank may still come to the number of a break point; see `passed`."""
    counts = _counts(point, groups)
    return not counts or any(min(each) < point.collective for each in counts.values())


def _counts(
    point: BreakPoint, groups: Mapping[Rank, Sequence[GroupInfo]]
) -> dict[GroupRef, list[int]]:
    """The numbers of collectives so far, on each rank of a break point, of each of its groups."""
    counts: dict[GroupRef, list[int]] = {}
    for rank, infos in groups.items():
        for info in infos if not point.ranks or rank in point.ranks else ():
            if not point.group or point.group in group_names(info):
                counts.setdefault(GroupRef.of(info), []).append(info.collective_seq_id)
    return counts


def _read(words: Sequence[str]) -> dict[str, str | int]:
    """Read the words of a place.

    Raises:
        BadOptionError: a word is not legal.
    """
    facts: dict[str, str | int] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in OPERATIONS:
            name, value = "op", word
        elif word == "line":
            name, value = "line", rest.pop(0) if rest else ""
        elif word.startswith("#"):
            name, value = "collective", word[1:]
        else:
            raise BadOptionError(f"%ddp break: {word!r} is unknown{_guess(word)}; legal: {_LEGAL}")
        if name in facts:
            raise BadOptionError(f"%ddp break: {word!r} is the second place of its kind")
        if name != "op" and not (value.isascii() and value.isdigit() and int(value) > 0):
            raise BadOptionError(
                f"%ddp break: {word!r} needs a whole number above 0; legal: #17, `line 7`"
            )
        facts[name] = value if name == "op" else int(value)
    return facts


def _guess(word: str) -> str:
    if word.isascii() and word.isdigit():
        return f". Did you mean #{word}, or `line {word}`"
    meant = {"isend": "send", "irecv": "recv"}.get(word)
    guesses = (
        [meant]
        if meant
        else difflib.get_close_matches(word, [*sorted(OPERATIONS), "line"], n=1, cutoff=0.7)
    )
    if guesses:
        return f". Did you mean {guesses[0]}"
    return ". The operations are " + ", ".join(sorted(OPERATIONS)) if word.isidentifier() else ""
