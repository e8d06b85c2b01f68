"""The event loop of the agent: its sockets, and descriptors with an action for each.

Runs in: the agent's thread.
"""

from collections.abc import Callable

from nbddp.wire.channels import Channel, Poller


class EventLoop:
    """One poller for everything, and one for the sockets alone."""

    def __init__(self, *channels: Channel) -> None:
        self._all = Poller()
        self._sockets = Poller()
        for channel in channels:
            self._all.add(channel)
            self._sockets.add(channel)
        self._actions: dict[int, Callable[[], None]] = {}  # by file descriptor

    def replace(self, old: Channel, new: Channel) -> None:
        """Wait for ``new`` in the place of ``old``, which is to be closed afterwards."""
        for poller in (self._all, self._sockets):
            poller.remove(old)
            poller.add(new)

    def listen(self, fd: int, action: Callable[[], None]) -> None:
        """Call ``action`` in each turn in which ``fd`` is readable."""
        self._actions[fd] = action
        self._all.add(fd)

    def ignore(self, fd: int) -> None:
        """Stop listening to ``fd``, before it is closed; does nothing if it is not listened to."""
        if self._actions.pop(fd, None) is not None:
            self._all.remove(fd)

    def also_writable(self, channel: Channel, wanted: bool) -> None:
        """Wait for room in ``channel`` as well, or stop waiting for it."""
        self._all.also_writable(channel, wanted)

    def wait(self, timeout_s: float) -> list[int]:
        """Wait for any source; returns the descriptors that are readable."""
        return [source for source in self._all.wait(timeout_s) if isinstance(source, int)]

    def wait_for_messages(self, timeout_s: float) -> None:
        """Wait for the sockets only."""
        self._sockets.wait(timeout_s)

    def act(self, ready: list[int]) -> None:
        """Call the actions of these descriptors."""
        for fd in ready:
            action = self._actions.get(fd)  # an earlier action may have removed it
            if action is not None:
                action()
