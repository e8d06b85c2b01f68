"""Cells that are interrupted as soon as their ranks have printed a word."""

import signal

from nbddp.controller.pool import CellOptions, Pool
from nbddp.controller.state.outcome import RunOutcome
from nbddp.wire.messages import RunFinished
from tests.support.views import RecordingView


class PressingView(RecordingView):
    """Presses Ctrl-C ``presses`` times, each time after the ranks have printed ``said``.

    Args:
        ended: ranks that must have ended the cell before.
    """

    def __init__(
        self, presses: int, said: str = "in\n", ranks: int = 2, ended: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        self._ended = set(ended)
        self._presses = presses
        self._said = said
        self._ranks = ranks

    def tick(self) -> float | None:
        said = [rank for rank, text in self.texts().items() if self._said in text]
        ended = {event.rank for event in self.events if isinstance(event, RunFinished)}
        if self._presses and len(said) >= self._ranks and self._ended <= ended:
            self._presses -= 1
            signal.raise_signal(signal.SIGINT)
        return 0.05


def interrupted(
    pool: Pool,
    code: str,
    presses: int = 1,
    ranks: int = 2,
    *,
    ended: tuple[int, ...] = (),
    before: str = "pass",
) -> RunOutcome:
    """Run a cell and interrupt it.

    Args:
        code: runs while Ctrl-C is pressed; the first press may come before its first line.
        before: runs before Ctrl-C is pressed.
    """
    code = f"{before}\nprint('in', flush=True)\n{code}\n"
    run = pool.submit(code, CellOptions(ranks=pool.all_ranks))
    return pool.wait(run, PressingView(presses, ranks=ranks, ended=ended))
