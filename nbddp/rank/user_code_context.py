"""Code of the user's that some ranks run alone: callbacks of widgets, and what is asked of them.

Runs in: the rank process. A callback runs on the main thread, or, while a cell keeps that, in
``nbddp-comms``; then it may outlive the cell. An expression that is pulled runs on the main thread,
what Tab and Shift-Tab look at in ``nbddp-side``.
"""

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from nbddp.wire.rank_set import RankSet


@dataclass(frozen=True)
class Question:
    """What the notebook asks, outside of cells."""

    ranks: RankSet  #: who is asked
    is_pull: bool = False  #: for the value of an expression; else for help on a name


class Callbacks:
    """Whether a callback runs, and where, at most one does at a time; and what is asked."""

    def __init__(self) -> None:
        self._is_here: ContextVar[bool] = ContextVar("nbddp_is_in_callback", default=False)
        #: The thread in which one runs; 0: none does.
        self.thread = 0
        #: Called before SIGINT is sent for a callback, see `Interrupts.expect_for_callback`.
        self.before_interrupt: Callable[[], None] = lambda: None
        self._question: ContextVar[Question | None] = ContextVar("nbddp_question", default=None)
        self._pulled: Question | None = None  #: which threads of C++ work for
        #: Tab or Shift-Tab is being answered, perhaps beside a cell.
        self.is_looked_at = False
        #: Called when that has changed.
        self.look_changed: Callable[[], None] = lambda: None

    @property
    def is_here(self) -> bool:
        """Whether what runs in this thread or task was called by a widget."""
        return self._is_here.get() or (self.thread != 0 and _is_foreign())

    @property
    def question(self) -> Question | None:
        """What is answered in this thread; None: what runs here was not asked for."""
        return self._question.get() or (self._pulled if _is_foreign() else None)

    @contextmanager
    def asked(self, question: Question) -> Iterator[None]:
        """Within this block this thread answers."""
        token = self._question.set(question)
        self._note(question, is_here=True)
        try:
            yield
        finally:
            self._note(question, is_here=False)
            self._question.reset(token)

    def _note(self, question: Question, *, is_here: bool) -> None:
        if question.is_pull:  # no cell runs
            self._pulled = question if is_here else None
        else:
            self.is_looked_at = is_here
            self.look_changed()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within this block a callback runs in this thread."""
        token = self._is_here.set(True)
        self.thread = threading.get_ident()
        try:
            yield
        finally:
            self.thread = 0
            self._is_here.reset(token)

    def interrupt(self) -> None:
        """Raise `KeyboardInterrupt` in the callback, if one runs. For any thread."""
        thread = self.thread
        if thread == threading.main_thread().ident:
            self.before_interrupt()
            signal.pthread_kill(thread, signal.SIGINT)  # wakes it from a wait, too
        elif thread:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt)
            )


def _is_foreign() -> bool:
    """Whether this is a thread of C++: autograd's have no context, and work for somebody."""
    return threading.get_ident() not in threading._active  # type: ignore[attr-defined]
