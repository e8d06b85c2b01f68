"""Stores that lead to the store of the pool are known while they live."""

import gc
import weakref

import torch.distributed as dist

from nbddp.rank import torch_private


def test_a_store_is_known_as_long_as_it_lives():
    below = dist.HashStore()  # type: ignore[attr-defined]  # missing in torch's own types
    store = dist.PrefixStore("own", below)  # type: ignore[attr-defined]  # as above
    torch_private.share_store(store, "nbddp/0")
    assert torch_private.shared_prefix(store) == "nbddp/0"
    assert torch_private.shared_prefix(below) is None
    assert torch_private.shared_prefix(object()) is None
    living = weakref.ref(store)
    del store
    gc.collect()
    assert living() is None
