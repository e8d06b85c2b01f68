"""``%ddp status --live``: a table that changes with the ranks.

Runs in: a thread of its own, ``nbddp-panel``, which asks the ranks about once a second and updates
one display of the cell that began it. The display is static HTML, not a widget: it needs no model
in the front end, and a saved notebook has the last table. Unchanged tables are not sent.

    nbddp-panel --survey--> hub --> ranks, agents --> table --update_display_data--> front end
"""

import contextlib
import threading
import time
from typing import Literal, TypeAlias

from nbddp.controller.pool import Pool
from nbddp.errors import PoolBrokenError
from nbddp.notebook.output import Sink
from nbddp.notebook.render import status_table

#: The shortest pause between two surveys of the ranks.
_INTERVAL_S = 1.0
#: A survey that takes long, because ranks do not answer, is followed by a longer pause.
_PAUSE_PER_SURVEY = 4
_END_LIMIT_S = 2.0

EndReason: TypeAlias = Literal["switched off", "it continues in a later cell"]


class Panel:
    """One live table; it ends with the pool.

    Args:
        pool: the pool whose ranks are shown.
        sink: shows the display.
        display_id: the id of the display.
    """

    def __init__(self, pool: Pool, sink: Sink, display_id: str) -> None:
        self.pool = pool
        self._sink = sink
        self._display_id = display_id
        self._end_reason = "the pool was stopped"
        self._ending = threading.Event()
        self._survey: status_table.Survey | None = None
        self._table: dict[str, str] = {}
        self._changed_at = ""
        #: The error that ended the updates; the front end has gone, for example.
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._serve, name="nbddp-panel", daemon=True)

    def begin(self) -> None:
        """Show the table in the running cell, and keep it up to date.

        Raises:
            PoolBrokenError: the pool was stopped, or its hub has ended.
        """
        self._show(status_table.survey(self.pool), update=False)
        self._thread.start()

    def end(self, reason: EndReason | None = None) -> None:
        """End the updates, and note the reason; None: the pool was stopped."""
        self._end_reason = reason or self._end_reason
        self._ending.set()
        self._thread.join(_END_LIMIT_S)

    @property
    def is_live(self) -> bool:
        """Whether the table is still updated."""
        return self._thread.is_alive()

    def _serve(self) -> None:
        try:
            pause_s = _INTERVAL_S
            while not (self._ending.wait(pause_s) or self.pool.is_stopped):
                began = time.monotonic()
                with contextlib.suppress(PoolBrokenError):  # the pool is being restarted or stopped
                    self._show(status_table.survey(self.pool), update=True)
                pause_s = max(_INTERVAL_S, _PAUSE_PER_SURVEY * (time.monotonic() - began))
            if self._survey is not None:
                note = f"as of {self._changed_at}: {self._end_reason}"
                self._send(self._survey.bundle(note))
        except Exception as error:  # noqa: BLE001 - the front end's connection failed
            self.failure = error

    def _show(self, survey: status_table.Survey, *, update: bool) -> None:
        table = survey.bundle(is_live=True)
        if table == self._table:  # often equal, since its numbers are rounded
            return
        self._survey, self._table = survey, table
        self._changed_at = time.strftime("%H:%M:%S")
        note = f"live, last change {self._changed_at}"
        self._send(survey.bundle(note, is_live=True), update=update)

    def _send(self, bundle: dict[str, str], *, update: bool = True) -> None:
        self._sink.display(bundle, {}, self._display_id, update)
