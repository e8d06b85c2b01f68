"""A sample of ``make fuzz``: nothing is executed, nothing crashes, and memory is bounded."""

import os
import random
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from nbddp.controller.pool.pool import Pool
from tests.fuzz.ends import AgentEnd, HubEnd, RankEnd, memory_is_bounded

_FRAMES = 400
_SEEDS = (1, 2, 3)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[pytest.mark.full] if number else [])
        for number, seed in enumerate(_SEEDS)
    ],
)
@pytest.mark.parametrize("kind", [HubEnd, AgentEnd], ids=["hub", "agent"])
def test_a_socket_withstands_fuzzed_frames(kind: Callable[[random.Random], Any], seed: int):
    with memory_is_bounded(os.getpid()), closing(kind(random.Random(seed))) as end:
        for _ in range(_FRAMES):
            end.attack()
        end.check()


@pytest.mark.timeout(180)
def test_ranks_withstand_fuzzed_frames_and_one_rank_harms_no_other(fresh_pool: Callable[..., Pool]):
    end = RankEnd(random.Random(4), fresh_pool(2))
    for _ in range(3):
        for _ in range(_FRAMES):
            end.attack()
        end.check()
