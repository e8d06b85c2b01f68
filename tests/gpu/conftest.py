"""Pools on GPUs, and the report of what was seen there."""

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from nbddp.controller.pool.pool import Pool
from tests.gpu import report
from tests.gpu.places import IS_DRY, SHARED, Place, Pools

#: The folder to which the report is written; `make gpu` sets it.
REPORT_ENV = "NBDDP_GPU_REPORT"

_FOLDER = Path(__file__).parent
_trials: dict[str, report.Trial] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a GPU all is skipped, with the reason."""
    for item in items:
        if item.path.parent != _FOLDER or item.path.name == "test_report.py":
            continue
        item.add_marker(pytest.mark.gpu)
        item.add_marker(pytest.mark.timeout(300))  # the first communicator of NCCL is slow
        place = getattr(item, "callspec", None) and item.callspec.params.get("place")  # type: ignore[attr-defined]
        missing = (place or SHARED).missing()
        if missing:
            item.add_marker(pytest.mark.skip(reason=missing))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, Any, None]:
    done = (yield).get_result()
    if item.get_closest_marker("gpu") is None or item.path.parent != _FOLDER:
        return
    trial = _trials.setdefault(item.nodeid, report.Trial(item.name, "passed", 0.0))
    trial.seconds += done.duration
    trial.seen = {name: str(value) for name, value in item.user_properties}
    if done.skipped and trial.outcome == "passed":
        trial.outcome = "skipped"
        trial.reason = done.longrepr[-1] if isinstance(done.longrepr, tuple) else str(done.longrepr)
    elif done.failed:
        trial.outcome = "failed"
        crash = getattr(done.longrepr, "reprcrash", None)
        trial.reason = crash.message if crash is not None else str(done.longrepr)[-500:]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report, if one is wanted."""
    folder = os.environ.get(REPORT_ENV)
    if folder and _trials:
        facts = report.environment("dry run on CPU" if IS_DRY else "on CUDA")
        path = report.write(Path(folder), facts, list(_trials.values()))
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"report: {path}")


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    found = Pools()
    yield found
    found.stop()


@pytest.fixture
def pool(place: Place, pools: Pools) -> Iterator[Pool]:
    """The pool of a place, which must work afterwards."""
    yield pools.get(place)
    pools.check(place)


@pytest.fixture
def seen(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """``seen("start", "1.2 s")``: for the report."""
    return lambda name, value: request.node.user_properties.append((name, value))
