"""User code that only some ranks run: callbacks of widgets, and queries of the notebook.

Runs in: the rank process. A callback runs on the main thread, or in ``nbddp-comms`` while a cell
occupies the main thread; then it may outlive the cell. An expression that is pulled runs on the
main thread. Tab and Shift-Tab are answered in ``nbddp-side``.
"""

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from nbddp.wire.rank_set import RankSet


@dataclass(frozen=True)
class Question:
    """A query of the notebook outside of cells."""

    ranks: RankSet  #: the ranks that run the code, and so may call a collective together
    #: ``lookup``: Tab or Shift-Tab; ``pull``: the value of an expression; ``description``: the
    #: parts of a value, which may have another type on each rank.
    kind: Literal["lookup", "pull", "description"]
    code: int = 0  #: of a pull, the same number on all ranks


class Callbacks:
    """The callback that runs, of which there is at most one, and the query that is answered."""

    def __init__(self) -> None:
        self._in_callback: ContextVar[bool] = ContextVar("nbddp_is_in_callback", default=False)
        #: The thread in which a callback runs; 0: none runs.
        self.thread = 0
        self._ending = threading.Lock()  # held while a callback ends, or is interrupted
        #: Called before SIGINT is sent for a callback, see `Interrupts.expect_for_callback`.
        self.before_interrupt: Callable[[], None] = lambda: None
        self._question: ContextVar[Question | None] = ContextVar("nbddp_question", default=None)
        self._pulled: Question | None = None  #: the query that threads of C++ work for
        #: Tab or Shift-Tab is being answered, perhaps beside a cell.
        self.is_answering_lookup = False
        #: Called when ``is_answering_lookup`` has changed.
        self.lookup_changed: Callable[[], None] = lambda: None
        #: Called with the code of a pull when no code of the user runs for it any more.
        self.pull_ended: Callable[[int], None] = lambda code: None

    @property
    def is_in_callback(self) -> bool:
        """True if a widget has called the code that runs in this thread or task."""
        return self._in_callback.get() or (self.thread != 0 and _is_foreign())

    @property
    def question(self) -> Question | None:
        """The query that is answered in this thread; None: the code here answers no query."""
        return self._question.get() or (self._pulled if _is_foreign() else None)

    @contextmanager
    def answering(self, question: Question) -> Iterator[None]:
        """Mark this thread as answering ``question`` within this block."""
        token = self._question.set(question)
        pulled = self._pulled
        if question.kind == "lookup":
            self._note_lookup(begins=True)
        else:  # no cell runs meanwhile
            self._pulled = question
        try:
            yield
        finally:
            if question.kind == "lookup":
                self._note_lookup(begins=False)
            else:
                self._pulled = pulled
            self._question.reset(token)
            if question.kind == "pull":
                self.pull_ended(question.code)

    def _note_lookup(self, *, begins: bool) -> None:
        self.is_answering_lookup = begins
        self.lookup_changed()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Mark this thread as running a callback within this block."""
        self._in_callback.set(True)
        self.thread = threading.get_ident()
        try:
            yield
        finally:
            try:
                self._end()
            except KeyboardInterrupt:  # the callback has ended anyway
                self._end()

    def _end(self) -> None:
        with self._ending:
            self.thread = 0
        with suppress(KeyboardInterrupt):
            # An interrupt that came too late is raised here, and not in what follows: Python looks
            # for one at the end of each iteration. It must not be taken back by an exception NULL:
            # CPython 3.11 then looks for one forever, and a trace function never returns.
            for _ in range(2):
                pass
        self._in_callback.set(False)

    def interrupt(self) -> None:
        """Raise `KeyboardInterrupt` in the callback, if one runs. Callable from any thread."""
        with self._ending:
            thread = self.thread
            if thread == threading.main_thread().ident:
                self.before_interrupt()
                signal.pthread_kill(thread, signal.SIGINT)  # also wakes it from a wait
            elif thread:
                _interrupt(thread)


def _interrupt(thread: int) -> None:
    """Raise `KeyboardInterrupt` in a thread as soon as it runs Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt)
    )


def _is_foreign() -> bool:
    """Return whether this is a thread of C++, such as autograd's, which have no context."""
    return threading.get_ident() not in threading._active  # type: ignore[attr-defined]
