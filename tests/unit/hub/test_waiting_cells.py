"""A cell that waits for a repair of the pool says so, and the stop button ends the wait."""

import queue

from nbddp.controller.hub.waiting_commands import Refusal, await_begin
from nbddp.controller.state import NotifyUser


class Scene:
    """A hub that answers after some seconds; each look at the queue takes a second."""

    def __init__(self, *, begins_after_s: float) -> None:
        self.now = 0.0
        self.begins_at = begins_after_s
        self.refusal: Refusal | None = None
        self.told: list[str] = []
        self.stopped_at = 1e9
        self.raises_at = 1e9
        self.ends_at = 1e9
        self.reason = "this cell waits until the process groups are formed again. The stop button"
        self.limit_s = 60.0

    def get(self, timeout: float) -> Refusal | None:
        """The answer, as of `queue.SimpleQueue`."""
        self.now += 1.0
        if self.now == self.raises_at:
            raise KeyboardInterrupt
        if self.refusal is not None or self.now >= self.begins_at:
            return self.refusal
        raise queue.Empty

    def refuse(self, refusal: Refusal) -> None:
        """The hub removes the cell."""
        self.refusal = refusal

    @property
    def is_alive(self) -> bool:
        """Whether the hub serves."""
        return self.now < self.ends_at

    def do(self, action: NotifyUser) -> None:
        """The hub shows a notice."""
        self.told.append(action.text)

    def wait(self) -> tuple[Refusal | None] | None:
        """Wait as `HubThread.begin` does."""
        return await_begin(
            self,  # type: ignore[arg-type]
            self,
            self.refuse,
            lambda: self.now >= self.stopped_at,
            self,
            clock=lambda: self.now,
        )

    def was_withdrawn(self) -> bool:
        """Whether the user has ended the wait."""
        answered = self.wait()
        return answered is not None and answered[0] is not None and answered[0].is_withdrawn


def test_a_short_wait_is_not_told():
    scene = Scene(begins_after_s=2.0)
    assert scene.wait() == (None,)
    assert scene.told == []


def test_a_long_wait_is_told_once():
    scene = Scene(begins_after_s=40.0)
    assert scene.wait() == (None,)
    [text] = scene.told
    assert text.startswith("this cell waits until the process groups are formed again")


def test_the_stop_button_ends_the_wait():
    scene = Scene(begins_after_s=40.0)
    scene.stopped_at = 5.0
    assert scene.was_withdrawn()
    assert scene.now < 10.0
    scene = Scene(begins_after_s=40.0)
    scene.raises_at = 5.0  # nobody counts the interrupts of a cell with --async
    assert scene.was_withdrawn()


def test_the_wait_has_a_limit_and_ends_with_the_hub():
    scene = Scene(begins_after_s=1e9)
    assert scene.wait() == (Refusal("fresh ranks are still taking their places"),)
    scene = Scene(begins_after_s=1e9)
    scene.ends_at = 5.0
    assert scene.wait() is None
