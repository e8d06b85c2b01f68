"""`SharedList`: the lists that ranks pass to ``new_group``, compared in a store."""

from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch.distributed as dist

from nbddp.errors import CollectiveRefusedError
from nbddp.rank.collectives.group_members import SharedList


def _store(folder: Path) -> Any:
    return dist.FileStore(str(folder / "store"), 4)  # type: ignore[attr-defined]  # missing in torch


class _StoreWithoutCompareSet:
    def compare_set(self, *_: object) -> NoReturn:
        raise NotImplementedError


def test_equal_and_overlapping_lists_are_accepted(tmp_path: Path):
    store = _store(tmp_path)
    for rank, ranks in enumerate([[0, 1], [0, 1], [1, 2]]):
        SharedList(store, "key").compare(rank, ranks)


def test_lists_without_a_common_member(tmp_path: Path):
    store = _store(tmp_path)
    SharedList(store, "key").compare(1, [0, 1])
    with pytest.raises(CollectiveRefusedError, match=r"new_group\(\[2, 3\]\), and rank 1 called"):
        SharedList(store, "key").compare(2, [2, 3])
    SharedList(store, "key of another call").compare(2, [2, 3])


def test_a_list_is_withdrawn_by_the_rank_that_came_first(tmp_path: Path):
    store = _store(tmp_path)
    first, second = SharedList(store, "key"), SharedList(store, "key")
    first.compare(0, [0, 1])
    second.compare(1, [0, 1])
    second.withdraw()
    with pytest.raises(CollectiveRefusedError):
        SharedList(store, "key").compare(2, [2, 3])
    first.withdraw()
    SharedList(store, "key").compare(2, [2, 3])


def test_a_store_that_cannot_compare():
    shared_list = SharedList(_StoreWithoutCompareSet(), "key")
    shared_list.compare(0, [0, 1])
    shared_list.withdraw()
