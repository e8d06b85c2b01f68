"""The result of ``pool.diff``: the differences of a value between ranks.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nbddp.wire.rank_set import RankSet, ranks_by_value


@dataclass(frozen=True)
class Detail:
    """A difference of one tensor between two groups of ranks.

    Example:
        >>> outcome = pool.run("weight = torch.zeros(2, 3); weight[1, 2] += rank")
        >>> detail = pool.diff("weight").differences[0].details[0]
        >>> detail.index, detail.values, detail.max_abs
        ((1, 2), ('0', '1'), 1.0)
    """

    one: RankSet  #: ranks that have the same value
    other: RankSet  #: ranks that have the other one
    index: tuple[int, ...] | None  #: of the first element that differs; None: it was not found
    values: tuple[str, str]  #: at that index, as text: on ``one``, on ``other``
    max_abs: float | None  #: the largest absolute difference; None: not known
    is_exact: bool  #: whether all blocks that differ were looked at
    norms: tuple[float | None, float | None]  #: of the whole tensor: on ``one``, on ``other``


@dataclass(frozen=True)
class LeafDifference:
    """A place in the value that is not the same on all ranks.

    Example:
        >>> outcome = pool.run("settings = {'lr': 0.1, 'seed': rank}")
        >>> place = pool.diff("settings").differences[0]
        >>> place.path, place.groups
        ("['seed']", ((RankSet(0), '0'), (RankSet(1), '1')))
    """

    path: str  #: behind the expression: ``.weight``, ``['lr']``; empty: the value itself
    groups: tuple[tuple[RankSet, str], ...]  #: ranks that agree, and what they have
    missing: RankSet  #: ranks that have nothing there
    is_tensor: bool
    part: str = ""  #: name of the shard, for a sharded tensor
    #: The property that differs: the value, the type of a value with parts, or a module's mode.
    kind: Literal["value", "type", "mode"] = "value"
    is_text: bool = False  #: a text that is too long to show whole
    details: tuple[Detail, ...] = ()


@dataclass(frozen=True)
class Difference:
    """The differences of a value between ranks, as `Pool.diff` gives them.

    Example:
        >>> outcome = pool.run("weight = torch.zeros(2, 3); weight[1, 2] += rank")
        >>> difference = pool.diff("weight")
        >>> difference.groups, difference.n_tensors, difference.nbytes
        ((RankSet(0), RankSet(1)), 1, 24)
    """

    expression: str  #: what was compared
    ranks: RankSet  #: the ranks that were compared
    groups: tuple[RankSet, ...]  #: ranks that agree everywhere; the largest first
    differences: tuple[LeafDifference, ...]  #: the places that differ
    n_tensors: int  #: number of tensors in the value, on one rank
    n_values: int  #: number of other values in it
    nbytes: int  #: of the tensors, on one rank
    sharding: Mapping[str, int] = field(default_factory=dict)  #: tensors by how they are sharded
    unknown: tuple[str, ...] = ()  #: places that cannot be compared
    errors: Mapping[str, RankSet] = field(default_factory=dict)  #: ranks without value, by reason
    is_cut: bool = False  #: values beyond the limit were not compared
    gradients: "Difference | None" = None  #: of the parameters; None: no rank has any

    @property
    def is_equal(self) -> bool | None:
        """Whether the whole value is the same on all ranks, without `gradients`.

        False: something differs. None, which is false in an ``if``: nothing differs as far as
        compared, but not all could be compared; see `unknown` and `is_cut`.

        Example:
            >>> difference.is_equal, pool.diff("world_size").is_equal
            (False, True)
        """
        if self.differs:
            return False
        return None if self.unknown or self.is_cut else True

    @property
    def differs(self) -> bool:
        """Whether something was found that is not the same on all ranks.

        Example:
            >>> difference.differs
            True
        """
        return len(self.groups) > 1

    def to_dict(self) -> dict[str, Any]:
        """Make plain data of it, which `json` can write; sets of ranks become lists.

        Example:
            >>> difference.to_dict()["differences"][0]["groups"]
            [{'ranks': [0], 'has': 'float32 (2, 3)'}, {'ranks': [1], 'has': 'float32 (2, 3)'}]
        """
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
    groups = ranks_by_value(label_by_rank)
    return tuple(sorted(groups.values(), key=lambda group: largest_first(group.ranks)))
