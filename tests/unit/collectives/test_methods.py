"""The signatures of calls: each kind of tensor has its own, and a known one is only looked up."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nbddp.rank.collectives import methods
from nbddp.rank.collectives.recording.signatures import Signatures
from nbddp.wire.flight_recorder import GroupInfo, Signature


class Calls:
    """Calls on a group of two ranks."""

    def __init__(self) -> None:
        info = GroupInfo.of(pg_id="w", name="0", ranks=(0, 1), backend="gloo")
        self._group: Any = SimpleNamespace(
            counters=SimpleNamespace(info=info, ranks=info.ranks), size=lambda: 2
        )
        self._recorder: Any = SimpleNamespace(signatures=Signatures())

    def signature(self, name: str, tensors: Sequence[torch.Tensor]) -> Signature:
        """The signature of a call."""
        if name == "send":
            return methods.message(self._group, self._recorder, name, tensors).signature
        describe = methods.COLLECTIVES[name]
        return describe(self._group, self._recorder, list(tensors)).signature


@pytest.mark.parametrize("name", ["allreduce", "broadcast", "allreduce_coalesced", "send"])
def test_tensors_in_other_places_have_other_signatures(name: str):
    calls = Calls()
    x = torch.eye(4)
    for _ in range(2):  # the second time it is known
        assert calls.signature(name, [x]).places == ()
        assert calls.signature(name, [x.to("meta")]).places == ("meta",)
        assert calls.signature(name, [x.to_sparse()]).places == ("sparse_coo",)


@pytest.mark.parametrize("name", ["allreduce", "broadcast", "allreduce_coalesced", "send"])
def test_the_places_of_a_known_call_are_not_read_again(name: str, monkeypatch: pytest.MonkeyPatch):
    calls = Calls()
    tensors = [torch.ones(3, device="meta")]
    first = calls.signature(name, tensors)
    monkeypatch.delattr(methods, "places_of")
    assert calls.signature(name, tensors) is first
