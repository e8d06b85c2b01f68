"""The stop button while values of ranks are compared or described."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import TransferInterruptedError
from tests.support.polling import poll_until
from tests.support.values import FINGERPRINTS_KEPT
from tests.support.views import run_cell

_ENDLESS = """
class Endless:
    def __repr__(self):
        if rank == 1:
            open({flag!r}, "w").close()
            while True: pass
        return "short"
value = [torch.ones(5), Endless()]
"""


@contextmanager
def pressed_when_there(flag: Path) -> Iterator[None]:
    """The stop button, once, when a rank has made this file."""

    def press() -> None:
        poll_until(flag.exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press, daemon=True)
    thread.start()
    yield
    thread.join()


@pytest.mark.parametrize("verb", ["diff", "vars"])
def test_one_interrupt_ends_a_question_and_nothing_is_kept(pool: Pool, tmp_path: Path, verb: str):
    flag = tmp_path / "flag"
    run_cell(pool, _ENDLESS.format(flag=str(flag)))
    with pressed_when_there(flag), pytest.raises(TransferInterruptedError, match="rank 1"):
        getattr(pool, verb)("value")
    assert pool.pull(FINGERPRINTS_KEPT) == [0, 0]
    assert not pool.diff("rank").is_equal
    run_cell(pool, "del value")
