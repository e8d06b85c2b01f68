"""Short patience with the name server while a TCPStore connects.

Runs in: the rank process. A client of the store looks up the name behind ``::ffff:127.0.0.1``,
which /etc/hosts seldom has; where the name server does not answer, each connection would take 5 s.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_ENV = "RES_OPTIONS"  # see resolv.conf(5)


@contextmanager
def impatient_resolver() -> Iterator[None]:
    """Within this block, look-ups of the calling thread give up after a second.

    What the user has set is left alone. Without glibc nothing changes.
    """
    reinit = getattr(ctypes.CDLL(None), "__res_init", None)
    if reinit is None or _ENV in os.environ:
        yield
        return
    os.environ[_ENV] = "timeout:1 attempts:1"
    reinit()
    try:
        yield
    finally:
        del os.environ[_ENV]
        reinit()
