"""Fixtures: pools of real ranks, and the check that nothing is left behind."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.pool import Pool
from nbddp.controller.state.rank_state import RankState
from nbddp.errors import NbddpError
from nbddp.notebook import source_check
from nbddp.settings import PRELOAD_ENV, Settings
from nbddp.wire.messages import RankExited
from tests.support import leaks, random_examples
from tests.support.polling import poll_until
from tests.support.restarted_pool import (
    RestartedPool,
    RestartedPools,
    forget_test,
    make_as_new,
)
from tests.support.views import RecordingView, run_cell

#: A limit for each example would make tests fail on a busy machine; speed is for tests/bench.
settings.register_profile("nbddp", deadline=None)
settings.load_profile("nbddp")

_FOLDERS_WITHOUT_LEAKS = {"pool", "chaos"}
#: Threads and tasks that stay could call anything: no later hang would be proven.
_HEALTH_CELL = """
import asyncio, builtins, sys, threading, time, warnings
_ones = torch.ones(1)
dist.all_reduce(_ones)
assert _ones.item() == world_size
assert sys.gettrace() is None, f"the test has left a trace function: {{sys.gettrace()}}"
for _each in threading.enumerate():
    if _each is threading.main_thread() or _each.name.startswith(("nbddp-", "asyncio_")):
        continue
    _each.join(10.0)
    assert not _each.is_alive(), f"the test has left {{_each}}"
# An interrupted `Thread.join` makes Python forget a thread that runs on.
for _try in range(1000):
    _known = {{_each.ident for _each in threading.enumerate()}}
    _forgotten = [_f for _i, _f in sys._current_frames().items() if _i not in _known]
    if not _forgotten:
        break
    time.sleep(0.01)
assert not _forgotten, f"the test has left threads: {{_forgotten}}"
_left = asyncio.all_tasks(asyncio.get_event_loop())
assert len(_left) == 1, f"the test has left tasks: {{_left}}"
del _ones, _each, _left, _try, _known, _forgotten
# The next test must meet its warnings; the context tells Python that the list has changed.
warnings.filters[:] = getattr(builtins, "first_filters", warnings.filters)
with warnings.catch_warnings():
    pass
# The next test must not meet an object whose `__reduce__` calls a barrier.
for _name in set(globals()).difference({first_names}):
    if not _name.startswith("_"):
        del globals()[_name]
"""

# jsonschema, which nbformat loads, would build grammars for a format that no notebook has: 4 s of
# each worker.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # an import of it fails

# Of another environment whose `activate` has been run: IPython would warn of it.
os.environ.pop("VIRTUAL_ENV", None)
os.environ[leaks.RUN_ENV] = str(os.getpid())
# A shell has its background jobs ignore interrupts, nohup hang-ups; their children would too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    random_examples.try_fewer(config.getoption("markexpr", ""))


def pytest_collection() -> None:
    """Nothing that is imported for tests becomes garbage: collections would only take time."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker runs a file; one worker runs all files with a browser, since two are too slow."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            folder = "tests/browser"
            return folder if nodeid.startswith(f"{folder}/") else str(super()._split_scope(nodeid))

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def make_pool(n: int = 2, settings: Settings | None = None, **options: Any) -> Pool:
    """A pool whose cells show nothing; use `tests.support.views.run_cell`."""
    return Pool(
        PoolOptions.checked(n, **options),
        settings or Settings(),
        lambda pool, run: RecordingView(),
        source_check.check_source,
    )


#: Signals of an error in C or C++.
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


class SharedPool:
    """One pool of two Gloo ranks for many tests; never used again after a test has broken it."""

    def __init__(self) -> None:
        self._pool: Pool | None = None
        self._first_names: list[str] = []  #: names of a rank that has run nothing
        self._is_first_group = True  #: no test has made another default process group
        self._crashes: list[str] = []  #: of ranks, in the running test

    @property
    def pool_id(self) -> str | None:
        return self._pool.pool_id if self._pool is not None else None

    def get(self) -> Pool:
        if self._pool is None:
            # Optimizers and DDP load it: seconds in each fresh rank.
            self._pool = make_pool(2, env={PRELOAD_ENV: "torch._dynamo"})
            self._watch_exits(self._pool)
            self._note_first(self._pool)
        return self._pool

    def _watch_exits(self, pool: Pool) -> None:
        """Show the ends of ranks in the report of a test that fails, and note crashes."""
        release = pool.listeners.rank_exited

        def rank_exited(exited: RankExited) -> None:
            code, end = exited.exit_code, f"{exited.last_output}\n{exited.fault}".strip()
            text = f"rank {exited.rank} exited, code {code}: {end}"
            sys.stderr.write(f"{text}\n")
            if -exited.exit_code in _CRASHES:
                self._crashes.append(text)
            release(exited)

        pool.listeners.rank_exited = rank_exited

    def _note_first(self, pool: Pool) -> None:
        """Note what ranks have that have run nothing."""
        self._first_names = pool.pull("list(globals())", ranks=0)
        pool.pull("setattr(__import__('builtins'), 'first_world', dist.group.WORLD)")
        filters = "list(__import__('warnings').filters)"
        pool.pull(f"setattr(__import__('builtins'), 'first_filters', {filters})")
        self._is_first_group = True

    def get_for(self, test: pytest.Item) -> Pool:
        """The pool with its first default group, but for tests that are marked `replaces_group`."""
        if not self._is_first_group and test.get_closest_marker("replaces_group") is None:
            self.renew()
        self._crashes.clear()
        return self.get()

    def check_health(self, *, may_replace_group: bool) -> None:
        """Fails, and drops the pool, if a test has left it in another state than it found it."""
        pool = self.get()
        try:
            assert not pool.is_stopped, "the test has stopped the shared pool"
            assert not pool.is_running, "the test has left a cell running"
            assert not self._crashes, "a rank crashed; a test that wants it has `breaks_pool`"
            states = {info.rank: info.state.name for info in pool.ranks()}
            assert set(states.values()) == {RankState.IDLE.name}, f"ranks: {states}"
            code = _HEALTH_CELL.format(first_names=self._first_names)
            view = run_cell(pool, code, timeout=30.0, check=False)
            assert view.error is None, f"the process group is broken:\n{view.error}"
            # Functions of torch that were imported before have the group as a default argument.
            # A rank that the test has restarted knows no first group, and has imported nothing.
            first = "getattr(__import__('builtins'), 'first_world', dist.group.WORLD)"
            self._is_first_group = all(pool.pull(f"dist.group.WORLD is {first}"))
            assert self._is_first_group or may_replace_group, "the test needs `replaces_group`"
        except BaseException:
            self.drop()
            raise

    def renew(self) -> None:
        """Make it as it was after its start, or drop it."""
        pool = self.get()
        try:
            make_as_new(pool)
            self._note_first(pool)
        except NbddpError:
            self.drop()

    def drop(self) -> None:
        """Stop it; the next test gets another. Nothing of it may be left."""
        pool, self._pool = self._pool, None
        self._is_first_group = True
        if pool is not None:
            pool.stop()
            poll_until(lambda: not leaks.processes_of_pool(pool.pool_id))


@pytest.fixture(scope="session")
def own_temporary_folder() -> Iterator[Path]:
    """A temporary folder for this run: pools of other programs are no leaks of the tests."""
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    folder = Path(tempfile.mkdtemp(prefix="nbt-"))
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    yield folder
    tempfile.tempdir = before[0]
    if before[1] is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before[1]
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_pool(own_temporary_folder: Path) -> Iterator[SharedPool]:
    shared = SharedPool()
    yield shared
    shared.drop()


@pytest.fixture(scope="session")
def restarted_pools(own_temporary_folder: Path) -> Iterator[RestartedPools]:
    pools = RestartedPools()
    yield pools
    pools.drop()


def shared_pool_of(request: pytest.FixtureRequest) -> SharedPool | RestartedPool:
    """The pool of a test that takes `pool`: its mark `fresh_ranks` names the options."""
    mark = request.node.get_closest_marker("fresh_ranks")
    if mark is None:
        shared: SharedPool = request.getfixturevalue("shared_pool")
        return shared
    pools: RestartedPools = request.getfixturevalue("restarted_pools")
    return pools.of(*mark.args, **mark.kwargs)


@pytest.fixture
def pool(request: pytest.FixtureRequest, shared_pool: SharedPool) -> Iterator[Pool]:
    """The shared pool of two Gloo ranks; it must be healthy afterwards (mark `breaks_pool`).

    With the mark `fresh_ranks`: one of other options, whose ranks are fresh.
    """
    del shared_pool  # tests may have it as a parameter
    shared = shared_pool_of(request)
    given = shared.get_for(request.node)
    yield given
    forget_test(given)
    if request.node.get_closest_marker("breaks_pool"):
        shared.renew()
    else:
        may_replace_group = request.node.get_closest_marker("replaces_group") is not None
        shared.check_health(may_replace_group=may_replace_group)


@pytest.fixture
def fresh_pool() -> Iterator[Callable[..., Pool]]:
    """Makes pools of the test's own: ``fresh_pool(4, init="none", settings=Settings(...))``."""
    made: list[Pool] = []

    def make(n: int = 2, settings: Settings | None = None, **options: Any) -> Pool:
        made.append(make_pool(n, settings, **options))
        return made[-1]

    yield make
    for pool in made:
        pool.stop()


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """No process, thread, descriptor, folder or shared memory of a test outlives it."""
    if Path(request.node.path).parent.name not in _FOLDERS_WITHOUT_LEAKS:
        yield
        return
    shared = shared_pool_of(request)
    if "pool" in request.fixturenames:
        shared.get_for(request.node)  # made before the snapshot: it belongs to no test
    before = leaks.take_snapshot(shared.pool_id)
    yield
    leaks.assert_no_leaks(before, lambda: shared.pool_id)
