"""What the agent waits for: its sockets, and descriptors with what to do when they can be read.

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

    def listen(self, fd: int, action: Callable[[], None]) -> None:
        """Call ``action`` in each turn in which ``fd`` can be read."""
        self._actions[fd] = action
        self._all.add(fd)

    def ignore(self, fd: int) -> None:
        """No longer; nothing happens if nobody listens to it. Before it is closed."""
        if self._actions.pop(fd, None) is not None:
            self._all.remove(fd)

    def also_writable(self, channel: Channel, wanted: bool) -> None:
        """Wait for room in ``channel`` as well, or no longer."""
        self._all.also_writable(channel, wanted)

    def wait(self, timeout_s: float) -> list[int]:
        """Wait for anything; gives the descriptors that can be read."""
        return [source for source in self._all.wait(timeout_s) if isinstance(source, int)]

    def wait_for_messages(self, timeout_s: float) -> None:
        """Wait for the sockets only."""
        self._sockets.wait(timeout_s)

    def act(self, ready: list[int]) -> None:
        """Do what is to be done for these descriptors."""
        for fd in ready:
            action = self._actions.get(fd)  # an action before it may have ended it
            if action is not None:
                action()
