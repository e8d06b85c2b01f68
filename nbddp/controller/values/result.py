"""The result of ``pool.diff``: the differences of a value between ranks.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nbddp.wire.rank_set import RankSet


@dataclass(frozen=True)
class Detail:
    """The difference of a tensor or long text between two groups of ranks."""

    one: RankSet
    other: RankSet
    index: tuple[int, ...] | None  #: index of the first different element; None: not known
    values: tuple[str, str]  #: the two values of this element
    max_abs: float | None  #: largest difference of an element; None: not known
    is_exact: bool  #: whether all blocks that differ were compared
    norms: tuple[float | None, float | None]


@dataclass(frozen=True)
class LeafDifference:
    """A place in the value that is not equal on all ranks."""

    path: str
    groups: tuple[tuple[RankSet, str], ...]  #: ranks that agree, and a text for their value
    missing: RankSet  #: ranks without a value there
    is_tensor: bool
    part: str = ""  #: name of the shard, for a sharded tensor
    #: The property that differs: the value, the type of a value with parts, or a module's mode.
    kind: Literal["value", "type", "mode"] = "value"
    is_text: bool = False  #: a text that is too long to show whole
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
    nbytes: int  #: size of the tensors on one rank
    sharding: Mapping[str, int] = field(default_factory=dict)  #: number of tensors by sharding
    unknown: tuple[str, ...] = ()  #: places that cannot be compared
    errors: Mapping[str, RankSet] = field(default_factory=dict)  #: ranks without value, by reason
    is_cut: bool = False  #: values beyond the limit were not compared
    gradients: "Difference | None" = None  #: of the parameters; None: no rank has any

    @property
    def is_equal(self) -> bool | None:
        """Whether the value is equal on all ranks; `gradients` do not count.

        None: no difference was found, but not all could be compared, see `unknown` and `is_cut`.
        """
        if self.differs:
            return False
        return None if self.unknown or self.is_cut else True

    @property
    def differs(self) -> bool:
        """Whether a difference was found."""
        return len(self.groups) > 1

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
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
                    "path": leaf.path,
                    "kind": leaf.kind,
                    "groups": [{"ranks": list(ranks), "has": has} for ranks, has in leaf.groups],
                    "missing": list(leaf.missing),
                    "first": [
                        {
                            "ranks": [list(detail.one), list(detail.other)],
                            "index": None if detail.index is None else list(detail.index),
                            "values": list(detail.values),
                            "max_abs": detail.max_abs,
                            "exact": detail.is_exact,
                            "norms": list(detail.norms),
                        }
                        for detail in leaf.details
                    ],
                }
                for leaf in self.differences
            ],
        }


def largest_first(ranks: Sequence[int]) -> tuple[int, int]:
    """Return a key that sorts groups of ranks by size, then by first rank."""
    return -len(ranks), ranks[0]


def grouped(label_by_rank: Mapping[int, object]) -> tuple[RankSet, ...]:
    """Return groups of ranks with equal labels, the largest group first."""
    groups: dict[object, list[int]] = {}
    for rank, label in label_by_rank.items():
        groups.setdefault(label, []).append(rank)
    return tuple(RankSet.of(group) for group in sorted(groups.values(), key=largest_first))
