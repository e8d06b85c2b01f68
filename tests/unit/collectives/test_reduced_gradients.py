"""What the sanitizer keeps of the tensors that are added up."""

import gc
import sys
import weakref

import pytest
import torch

from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.sanitizer import reduced_gradients, replica_hashes
from nbddp.rank.collectives.sanitizer.reduced_gradients import ReducedGradients, Reduction
from nbddp.rank.collectives.sanitizer.replica_hashes import Replicas
from nbddp.rank.values import tensor_hash
from nbddp.wire.flight_recorder import GroupInfo, Site

FIRST = Reduction("0", 2, 1)


def gradients_of(flat: torch.Tensor) -> list[torch.Tensor]:
    return [part.clone() for part in flat.split(1)]


def note(gradients: ReducedGradients, tensor: torch.Tensor) -> None:
    gradients.note(FIRST, [tensor])
    gradients.note_copies(FIRST, [tensor], tensor_hash.of_tensor)


def test_one_tensor_that_a_loop_adds_up_is_kept_once():
    gradients, loss = ReducedGradients(), torch.ones(1)
    before = sys.getrefcount(loss)
    for _ in range(3):
        note(gradients, loss)
    assert sys.getrefcount(loss) == before + 1
    gradients.clear()
    assert sys.getrefcount(loss) == before


def test_only_the_newest_flat_tensors_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reduced_gradients, "_MAX_FLAT", 2)
    gradients = ReducedGradients()
    old, *new = [torch.full((2,), float(value)) for value in range(3)]
    for flat in (old, *new):
        note(gradients, flat)
    assert [gradients.reduction_of(gradients_of(flat)) for flat in new] == [FIRST, FIRST]
    assert gradients.reduction_of(gradients_of(old)) is None


def test_a_view_of_much_memory_is_not_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reduced_gradients, "_MAX_FLAT_BYTES", 64)
    gradients, much = ReducedGradients(), torch.ones(64)
    note(gradients, much[:2])
    assert gradients.reduction_of(gradients_of(torch.ones(2))) is None
    reference = weakref.ref(much)
    del much
    assert reference() is None


def test_the_buckets_of_a_library_are_not_kept():
    gradients, bucket = ReducedGradients(), torch.ones(2)
    before = sys.getrefcount(bucket)
    gradients.note(FIRST, [bucket])
    assert sys.getrefcount(bucket) == before
    assert gradients.reduction_of([bucket]) == FIRST


def test_the_caller_measures_the_time_of_a_reduction():
    """The sanitizer adds both times."""
    replicas = Replicas(None)  # type: ignore[arg-type]  # no step: no line is looked for
    replicas.hash_of = tensor_hash.of_tensor
    replicas.begin()
    counters = GroupCounters(GroupInfo.of(pg_id="0", name="0", ranks=(0, 1)))
    for is_of_user in (True, False):
        replicas.note_reduced(counters, [torch.ones(2)], is_of_user=is_of_user)
    assert replicas.spent_ns == 0
    assert replicas.end(lambda: (), has_failed=False) == ()


def test_nothing_is_read_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch):
    def refuse(*tensors: torch.Tensor) -> None:
        raise AssertionError(tensors)

    replicas = Replicas(None)  # type: ignore[arg-type]  # as above
    replicas.hash_of = tensor_hash.of_tensor
    replicas.begin()
    counters = GroupCounters(GroupInfo.of(pg_id="0", name="0", ranks=(0, 1)))
    module = torch.nn.Linear(2, 1, bias=False)
    replicas.note_reduced(counters, [torch.ones(2)], is_of_user=True)  # a flat copy
    module.weight.grad = torch.ones(1, 2)
    monkeypatch.setattr("nbddp.rank.collectives.sanitizer.finite.is_captured", lambda tensor: True)
    monkeypatch.setattr(replicas, "hash_of", refuse)
    with monkeypatch.context() as patches:
        patches.setattr(torch, "equal", refuse)
        module.zero_grad(set_to_none=False)
        replicas.note_reduced(counters, [module.weight.grad], is_of_user=True)
        torch.optim.SGD(module.parameters(), 0.1).step()
    assert replicas.end(lambda: (), has_failed=True) == ()


class NoSites:
    """Finds no line."""

    def user_frame(self, frame: object) -> object:
        return frame

    def site_of(self, _: object) -> Site:
        return Site()

    def stack(self, _: object) -> tuple[Site, ...]:
        return (Site(),)


def test_an_optimizer_with_the_identity_of_one_that_has_gone_is_another_one(
    monkeypatch: pytest.MonkeyPatch,
):
    def same(one: object) -> int:
        return 7 if isinstance(one, torch.optim.Optimizer) else id(one)

    monkeypatch.setattr(replica_hashes, "id", same, raising=False)
    replicas = Replicas(NoSites())  # type: ignore[arg-type]
    hashed: list[torch.Tensor] = []
    replicas.hash_of = lambda tensor: hashed.append(tensor) or tensor_hash.of_tensor(tensor)  # type: ignore[func-returns-value]
    replicas.begin()
    try:
        for count in (1, 2):
            optimizer = torch.optim.SGD(torch.nn.Linear(2, 1, bias=False).parameters(), 0.1)
            optimizer.step()
            optimizer.step()  # one note of each optimizer
            assert len(hashed) == count
            gone = weakref.ref(optimizer)
            del optimizer
            gc.collect()
            assert gone() is None
    finally:
        replicas.end(lambda: (), has_failed=True)


def test_gradients_that_are_forgotten_beside_others_of_their_layer():
    gradients = {name: torch.ones(2) for name in ("weight", "bias")}
    reduced = ReducedGradients()
    reduction = Reduction("0", 2, 1)
    assert reduced.forgotten_of(gradients) is None
    reduced.note(reduction, [gradients["weight"]])
    assert reduced.forgotten_of(gradients) == (("bias",), reduction)
    reduced.note(reduction, [gradients["bias"]])
    assert reduced.forgotten_of(gradients) is None
    assert reduced.forgotten_of({}) is None
