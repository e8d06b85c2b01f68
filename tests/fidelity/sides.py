"""The two pools of a comparison: traced and stock groups, each kept from test to test.

Runs in: the process that drives the pools.
"""

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.pool import Pool
from nbddp.errors import NbddpError
from nbddp.notebook import source_check
from nbddp.settings import Settings
from tests.fidelity.suites import TorchTest
from tests.support.views import RecordingView, run_cell

#: How a test ended. The last three are failures.
Ending = Literal["passed", "skipped", "failed", "timed out", "exited"]
_ROOT = Path(__file__).resolve().parents[2]
_SHORT_S = 40.0
#: For the fork server, which loads torch's tests once.
ENVIRONMENT = {"NBDDP_PRELOAD": "tests.fidelity.preload", "OMP_NUM_THREADS": "1"}
_SETTINGS = Settings(start_timeout_s=300.0)
_CLEAN_UP = "from tests.fidelity import in_rank\nin_rank.clean_up()"
#: A cell after each test, on the ranks that have no group now.
_HEALTH = """
dist.init_process_group("gloo", init_method={path!r}, rank=rank, world_size=world_size)
_ones = torch.ones(1)
dist.all_reduce(_ones)
assert _ones.item() == world_size, _ones
dist.destroy_process_group()
del _ones
"""


@dataclass(frozen=True)
class Result:
    """How one test ended on one side."""

    ending: Ending
    detail: str  #: the error, or why it was skipped
    seconds: float


class Side:
    """A pool, made when it is first asked for; another takes its place when it is broken."""

    def __init__(self, *, plain: bool, limit_s: float) -> None:
        self._plain = plain
        self._limit_s = limit_s
        self._pool: Pool | None = None
        self._ranks = 0
        self.restarts: list[str] = []  #: after which test, and why

    def run(self, test: TorchTest) -> Result:
        """Run a test in a cell; what it leaves behind is cleaned up."""
        folder = Path(tempfile.mkdtemp(prefix="fidelity-"))
        try:
            for name in ("barrier", "test_dir", "init_dir"):
                (folder / name).mkdir()
            pool = self._pool_of(test.ranks)
            began = time.monotonic()
            code = f"in_rank.run({test.suite!r}, {test.method!r}, {str(folder)!r})"
            code = f"from tests.fidelity import in_rank\n{code}"
            view = run_cell(pool, code, timeout=self._limit_s, check=False)
            result = _result(view, time.monotonic() - began)
            self._clean_up(pool, test, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return result

    def stop(self) -> None:
        """End the pool."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()

    def _pool_of(self, ranks: int) -> Pool:
        if ranks != self._ranks:
            self.stop()
            self._ranks = ranks
        if self._pool is None:
            os.environ["WORLD_SIZE"] = str(ranks)  # of the fork server, which loads the tests
            options = PoolOptions.checked(
                ranks,
                init="none",
                device="cpu",  # the tests touch CUDA before ranks are forked
                plain=self._plain,
                cwd=_ROOT,
                env={"BACKEND": "gloo"},
            )
            view = RecordingView()
            self._pool = Pool(options, _SETTINGS, lambda *_: view, source_check.check_source)
        return self._pool

    def _clean_up(self, pool: Pool, test: TorchTest, folder: Path) -> None:
        try:
            if test.fresh:
                pool.restart()
                return
            run_cell(pool, _CLEAN_UP, timeout=_SHORT_S)
            run_cell(pool, _HEALTH.format(path=f"file://{folder}/health"), timeout=_SHORT_S)
        except NbddpError as error:
            self.restarts.append(f"{test.name}: {_brief(str(error))}")
            self.stop()


def _result(view: RecordingView, seconds: float) -> Result:
    outcome = view.outcome
    assert outcome is not None
    if view.error is None:
        texts = {rank: (view.result(rank) or "").strip("'\"") for rank in outcome.results}
        skipped = next((text for text in texts.values() if text != "passed"), "")
        return Result("skipped" if skipped else "passed", skipped, seconds)
    ending: Ending = "failed"
    if outcome.ranks("exited"):
        ending = "exited"
    elif outcome.timed_out:
        ending = "timed out"
    return Result(ending, str(view.error), seconds)


def _brief(text: str) -> str:
    return " ".join(text.split())[:300]
