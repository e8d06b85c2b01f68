"""What is kept of the steps of a cell, with a limit on their number."""

import pytest
import torch

from nbddp.rank.collectives.sanitizer import step_hashes
from nbddp.rank.collectives.sanitizer.step_hashes import StepHashes
from nbddp.rank.collectives.sanitizer.whole_models import Model
from nbddp.rank.values import tensor_hash
from nbddp.wire.flight_recorder import DIGEST_BYTES, ReplicaSteps, Site

_FIRST, _OTHER = (Site(line=7),), (Site(line=9),)


def _report(places: list[tuple[Site, ...]]) -> ReplicaSteps:
    """Each step, in its line, makes the weight greater by one."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], 1.0)
    steps = StepHashes(
        Model(None, "0", 1), optimizer, 0, {"weight": weight},
        lambda one: tensor_hash.of_tensor(one.detach())[:DIGEST_BYTES],
    )  # fmt: skip
    steps.begin(places[0], {})
    for number, place in enumerate(places):
        if number:
            steps.note_start(place)
        weight.data += 1
        steps.add(place)
    return steps.report(tuple)


def test_steps_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch):
    whole = _report([_FIRST] * 5)
    assert (len(whole.site_of_step), whole.later_steps) == (6, 0)
    monkeypatch.setattr(step_hashes, "_MAX_STEPS", 3)
    cut = _report([_FIRST] * 5)
    assert (len(cut.site_of_step), cut.later_steps) == (3, 3)
    assert cut.digests == whole.digests[: 3 * DIGEST_BYTES]
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
