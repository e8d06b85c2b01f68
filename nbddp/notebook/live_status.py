"""``%ddp status --live``: a table that changes with the ranks.

Runs in: a thread of its own, ``nbddp-panel``, which asks the ranks about once a second and updates
one display of the cell that began it. That is static HTML, not a widget: it needs no model in the
front end, and what is saved is the last table. Nothing is sent while nothing changes.

    nbddp-panel --survey--> hub --> ranks, agents --> table --update_display_data--> front end
"""

import contextlib
import threading
import time
from typing import Literal, TypeAlias

from nbddp.controller.pool.pool import Pool
from nbddp.errors import PoolBrokenError
from nbddp.notebook.output import Sink
from nbddp.notebook.render import status_table

#: Between two looks at the ranks.
_INTERVAL_S = 1.0
#: A look that takes long, because ranks do not answer, is followed by a longer pause.
_PAUSE_PER_LOOK = 4
_END_LIMIT_S = 2.0

Why: TypeAlias = Literal["switched off", "it goes on in a later cell"]


class Panel:
    """One live table; it ends with the pool."""

    def __init__(self, pool: Pool, sink: Sink, display_id: str) -> None:
        self.pool = pool
        self._sink = sink
        self._display_id = display_id
        self._why_ended = "the pool was stopped"
        self._ending = threading.Event()
        self._survey: status_table.Survey | None = None
        self._table: dict[str, str] = {}
        self._changed_at = ""
        #: Why the table could not be shown; the front end has gone, for example.
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._serve, name="nbddp-panel", daemon=True)

    def begin(self) -> None:
        """Show the table, here and now, and keep it up to date. Raises `PoolBrokenError`."""
        self._show(status_table.survey(self.pool), update=False)
        self._thread.start()

    def end(self, why: Why | None = None) -> None:
        """Leave the table as it is; without a reason the pool was stopped."""
        self._why_ended = why or self._why_ended
        self._ending.set()
        self._thread.join(_END_LIMIT_S)

    @property
    def is_live(self) -> bool:
        """Whether it still changes."""
        return self._thread.is_alive()

    def _serve(self) -> None:
        try:
            pause_s = _INTERVAL_S
            while not (self._ending.wait(pause_s) or self.pool.is_stopped):
                began = time.monotonic()
                with contextlib.suppress(PoolBrokenError):  # it is being restarted, or stopped
                    self._show(status_table.survey(self.pool), update=True)
                pause_s = max(_INTERVAL_S, _PAUSE_PER_LOOK * (time.monotonic() - began))
            if self._survey is not None:
                note = f"as of {self._changed_at}: {self._why_ended}"
                self._send(self._survey.bundle(note))
        except Exception as error:  # noqa: BLE001 - of the front end's connection; nothing is lost
            self.failure = error

    def _show(self, survey: status_table.Survey, *, update: bool) -> None:
        table = survey.bundle(is_live=True)
        if table == self._table:  # its numbers are rounded
            return
        self._survey, self._table = survey, table
        self._changed_at = time.strftime("%H:%M:%S")
        note = f"live, last change {self._changed_at}"
        self._send(survey.bundle(note, is_live=True), update=update)

    def _send(self, bundle: dict[str, str], *, update: bool = True) -> None:
        self._sink.display(bundle, {}, self._display_id, update)
