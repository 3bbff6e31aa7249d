"""Tells whether this is still the process in which something began."""

from __future__ import annotations

import mmap
import os

_SIZE = 16
_WIPE_ON_FORK = 18  # of madvise, in Linux since 4.14


def _page() -> memoryview:
    """Returns memory of which a forked child gets zeros, if the system can do that."""
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        page.madvise(_WIPE_ON_FORK)
        return memoryview(page)[:_SIZE]
    except (AttributeError, OSError, ValueError):
        return memoryview(bytearray(_SIZE))


_token = _page()
_ZERO = bytes(_SIZE)


def here() -> tuple[int, bytes]:
    """Returns what no other process has: its ID, which a new PID namespace may repeat, and a
    random token, which the kernel wipes in a child. Code need not be called for that: not every
    fork runs hooks."""
    if _token == _ZERO:
        _renew()
    return os.getpid(), bytes(_token)


def _renew() -> None:
    _token[:] = os.urandom(_SIZE)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)  # where the system does not wipe
