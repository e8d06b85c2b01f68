"""What a rank answers while its main thread runs a cell: completion, inspection.

Runs in: the rank process, thread ``nbddp-side``, which starts with the first question. It needs
the GIL: a rank in a C call that holds it answers later, or too late. The I/O thread does not do
this itself, since looking up names runs code of the user's objects, which may take its time.
"""

import queue
import threading
import time

from nbddp.rank import inspection
from nbddp.rank.callbacks import Question
from nbddp.rank.link import Link
from nbddp.rank.shell import RankShell
from nbddp.wire.messages import Complete, Inspect
from nbddp.wire.ranks import RankSet

#: Nobody waits longer than that for an answer.
_STALE_S = 1.0


class Side:
    """Takes questions from the I/O thread."""

    def __init__(self, shell: RankShell, link: Link) -> None:
        self._shell = shell
        self._link = link
        self._questions: queue.SimpleQueue[tuple[float, Complete | Inspect]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, question: Complete | Inspect) -> None:
        """Answer it soon. Called by the I/O thread."""
        self._questions.put((time.monotonic(), question))
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="nbddp-side", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        inspection.prepare(self._shell)
        looks = Question(RankSet.of([self._shell.rank]))
        while True:
            asked_at, question = self._questions.get()
            if time.monotonic() - asked_at > _STALE_S:
                continue
            try:
                with self._shell.callbacks.asked(looks):
                    answer = inspection.answer(self._shell, question)
                self._link.send(answer)
            except Exception:  # noqa: BLE001 - of the user's objects, or of IPython
                # Silently: who pressed Tab has asked for names, not for a traceback in a cell.
                self._link.send(inspection.nothing(self._shell.rank, question))
