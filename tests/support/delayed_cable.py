"""A cable that delays each frame, for kernels without netem.

    python -m tests.support.delayed_cable NAME_A NAME_B DELAY_MS

It makes two TAP devices and carries Ethernet frames from one to the other, each DELAY_MS later. It
prints "up" when they exist; they may then be moved into a network namespace. They are gone when its
standard input ends. Needs root and /dev/net/tun.
"""

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

_TAP = "/dev/net/tun"
#: linux/if_tun.h
_SET_INTERFACE = 0x400454CA
_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
_MAX_FRAME_BYTES = 65536
#: Later frames are lost, as in a router.
_MAX_QUEUED_FRAMES = 10_000


def reason_to_skip() -> str:
    """Why there can be no such cable here; empty: there can."""
    try:
        os.close(os.open(_TAP, os.O_RDWR))
    except OSError as error:
        return f"no TAP device can be made: {error}"
    return ""


def _tap(name: str) -> int:
    device = os.open(_TAP, os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22s", name.encode(), _IFF_TAP | _IFF_NO_PI, b"")
    fcntl.ioctl(device, _SET_INTERFACE, request)
    return device


def _carry(ends: tuple[int, int], delay_s: float) -> None:
    """Carry frames until the standard input ends."""
    others = {ends[0]: ends[1], ends[1]: ends[0]}
    queue: deque[tuple[float, int, bytes]] = deque()
    stdin = sys.stdin.fileno()
    while True:
        wait_s = max(0.0, queue[0][0] - time.monotonic()) if queue else None
        ready, _, _ = select.select([*ends, stdin], [], [], wait_s)
        if stdin in ready:
            return
        for end in ready:
            try:
                frame = os.read(end, _MAX_FRAME_BYTES)
            except OSError:  # the device is down
                continue
            if len(queue) < _MAX_QUEUED_FRAMES:
                queue.append((time.monotonic() + delay_s, others[end], frame))
        while queue and queue[0][0] <= time.monotonic():
            _, end, frame = queue.popleft()
            try:
                os.write(end, frame)
            except OSError:  # the device is down: the frame is lost
                continue


if __name__ == "__main__":
    taps = (_tap(sys.argv[1]), _tap(sys.argv[2]))
    sys.stdout.write("up\n")
    sys.stdout.flush()
    _carry(taps, float(sys.argv[3]) / 1000)
