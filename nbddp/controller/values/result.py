"""How a value differs between ranks: the answer to ``pool.diff``.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nbddp.wire.rank_set import RankSet


@dataclass(frozen=True)
class Detail:
    """How a tensor differs between two groups of ranks."""

    one: RankSet
    other: RankSet
    index: tuple[int, ...] | None  #: of the first element that differs
    values: tuple[str, str]
    max_abs: float | None
    is_exact: bool  #: whether all blocks that differ were looked at
    norms: tuple[float | None, float | None]


@dataclass(frozen=True)
class LeafDifference:
    """A place in the value that is not the same everywhere."""

    path: str
    groups: tuple[tuple[RankSet, str], ...]  #: ranks that agree, and what they have
    missing: RankSet  #: ranks that have nothing there
    is_tensor: bool
    part: str = ""  #: of a sharded tensor: which shard
    #: What it is that differs: what lies there, the type of what has parts, or a module's mode.
    kind: Literal["value", "type", "mode"] = "value"
    is_text: bool = False  #: too long to be told whole
    details: tuple[Detail, ...] = ()


@dataclass(frozen=True)
class Difference:
    """The answer to ``pool.diff(expression)``."""

    expression: str
    ranks: RankSet
    groups: tuple[RankSet, ...]  #: ranks that agree everywhere; the largest first
    differences: tuple[LeafDifference, ...]
    n_tensors: int
    n_values: int
    nbytes: int  #: of the tensors, on one rank
    sharding: Mapping[str, int] = field(default_factory=dict)  #: tensors by how they are sharded
    unknown: tuple[str, ...] = ()  #: places that cannot be compared
    errors: Mapping[str, RankSet] = field(default_factory=dict)  #: why ranks have no value
    is_cut: bool = False  #: there were more values than are looked at
    gradients: "Difference | None" = None  #: of its parameters; None: no rank has any

    @property
    def is_equal(self) -> bool | None:
        """Whether all of it is the same; what `gradients` do is not part of it.

        None: nothing differs as far as compared, but not all could be, see `unknown` and `is_cut`.
        """
        if self.differs:
            return False
        return None if self.unknown or self.is_cut else True

    @property
    def differs(self) -> bool:
        """Whether something was found that is not the same everywhere."""
        return len(self.groups) > 1

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "expression": self.expression,
            "equal": self.is_equal,
            "groups": [list(group) for group in self.groups],
            "tensors": self.n_tensors,
            "values": self.n_values,
            "bytes": self.nbytes,
            "sharding": dict(self.sharding),
            "unknown": list(self.unknown),
            "cut": self.is_cut,
            "errors": {text: list(ranks) for text, ranks in self.errors.items()},
            "gradients": None if self.gradients is None else self.gradients.to_dict(),
            "differences": [
                {
                    "path": each.path,
                    "kind": each.kind,
                    "groups": [{"ranks": list(ranks), "has": has} for ranks, has in each.groups],
                    "missing": list(each.missing),
                    "first": [
                        {
                            "ranks": [list(detail.one), list(detail.other)],
                            "index": None if detail.index is None else list(detail.index),
                            "values": list(detail.values),
                            "max_abs": detail.max_abs,
                            "exact": detail.is_exact,
                            "norms": list(detail.norms),
                        }
                        for detail in each.details
                    ],
                }
                for each in self.differences
            ],
        }


def largest_first(ranks: Sequence[int]) -> tuple[int, int]:
    """For sorting groups of ranks."""
    return -len(ranks), ranks[0]


def grouped(label_by_rank: Mapping[int, object]) -> tuple[RankSet, ...]:
    """Ranks with equal labels, the largest group first."""
    groups: dict[object, list[int]] = {}
    for rank, label in label_by_rank.items():
        groups.setdefault(label, []).append(rank)
    return tuple(RankSet.of(group) for group in sorted(groups.values(), key=largest_first))
