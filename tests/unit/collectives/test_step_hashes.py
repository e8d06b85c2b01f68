"""What is kept of the steps of a cell, with a limit on their number."""

import pytest
import torch

from nbddp.rank.collectives.sanitizer import step_hashes
from nbddp.rank.collectives.sanitizer.step_hashes import StepHashes
from nbddp.rank.collectives.sanitizer.whole_models import Model
from nbddp.rank.values import tensor_hash
from nbddp.wire.flight_recorder import HASH_BYTES, ReplicaSteps, Site

_FIRST, _OTHER = (Site(line=7),), (Site(line=9),)


def _report(places: list[tuple[Site, ...]]) -> ReplicaSteps:
    """Each step, in its line, makes the weight greater by one."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], 1.0)
    steps = StepHashes(
        Model(None, "0", 1), optimizer, 0, {"weight": weight},
        lambda one: tensor_hash.of_tensor(one.detach())[:HASH_BYTES],
    )  # fmt: skip
    steps.begin(places[0], {})
    for number, place in enumerate(places):
        if number:
            steps.note_start(optimizer, place)
        weight.data += 1
        steps.add(place)
    return steps.report(tuple)


def test_steps_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch):
    whole = _report([_FIRST] * 5)
    assert (len(whole.site_of_step), whole.later_steps) == (6, 0)
    monkeypatch.setattr(step_hashes, "_MAX_STEPS", 3)
    cut = _report([_FIRST] * 5)
    assert (len(cut.site_of_step), cut.later_steps) == (3, 3)
    assert cut.digests == whole.digests[: 3 * HASH_BYTES]
    assert cut.newest == whole.newest  # of the end of the cell


def test_no_hashes_are_taken_before_a_step_beyond_the_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(step_hashes, "_MAX_STEPS", 3)
    report = _report([_FIRST, _FIRST, _FIRST, _OTHER, _OTHER])
    assert [start.step for start in report.starts] == [1]


def test_a_state_that_is_lost_after_the_first_step_is_reported():
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.SGD([weight], 1.0, momentum=0.9)
    steps = StepHashes(Model(None, "0", 1), optimizer, 0, {"weight": weight}, lambda _: b"")
    steps.begin(_FIRST, {})
    optimizer.step()
    steps.add(_FIRST)
    assert steps.report(tuple).lost_states == ()
    optimizer.load_state_dict(torch.optim.SGD([weight], 1.0).state_dict())
    assert steps.report(tuple).lost_states == ("momentum_buffer of weight",)


def test_a_later_optimizer_of_the_same_parameters_goes_on_with_the_steps():
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    first, later = torch.optim.Adam([weight], 0.1), torch.optim.SGD([weight], 1.0)
    steps = StepHashes(Model(None, "0", 1), first, 0, {"weight": weight}, lambda _: b"")
    assert steps.are_of({"weight": weight})
    assert not steps.are_of({"other": weight})
    assert not steps.are_of({"weight": torch.nn.Parameter(torch.zeros(1))})
    steps.begin(_FIRST, {})
    first.step()
    steps.add(_FIRST)
    for _ in range(2):
        steps.note_start(later, _FIRST)
        later.step()
        steps.add(_FIRST)
    report = steps.report(tuple)
    assert report.optimizers == ("Adam", "SGD")
    assert report.optimizer_of_step == bytes([0, 0, 1, 1])
    assert [start.step for start in report.starts] == [1, 2]
    assert (report.states, report.lost_states) == ((), ())  # those of SGD
    assert report.settings[-1].startswith("lr=1.0")


def test_the_state_of_an_optimizer_in_whose_place_another_one_steps_is_not_reported():
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.Adam([weight], 0.1)
    steps = StepHashes(Model(None, "0", 1), optimizer, 0, {"weight": weight}, lambda _: b"x" * 8)
    steps.begin(_FIRST, {})
    optimizer.step()
    steps.add(_FIRST)
    assert steps.report(tuple).state_hashes
    replaced = steps.report(tuple, is_replaced=True)
    assert (replaced.state_hashes, replaced.lost_states) == (b"", ())
