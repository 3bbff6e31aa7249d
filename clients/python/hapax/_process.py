"""Tells whether this is still the process in which something began."""

from __future__ import annotations

import mmap
import os

_SIZE = 16
_WIPE_ON_FORK = 18  # of madvise, in Linux since 4.14


def _page() -> tuple[memoryview, bool]:
    """Returns memory of which a forked child gets zeros, if the system can do that."""
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        page.madvise(_WIPE_ON_FORK)
        return memoryview(page), True
    except (AttributeError, OSError, ValueError):
        return memoryview(bytearray(_SIZE)), False


_token, wiped = _page()
_ZERO = bytes(_SIZE)


def here() -> tuple[int, bytes]:
    """Returns what no other process has: its ID, which a new PID namespace may repeat, and a
    random token, which the kernel wipes in a child. Code need not be called for that: not every
    fork runs hooks."""
    token = bytes(_token[:_SIZE])
    if token == _ZERO:
        _renew()
        token = bytes(_token[:_SIZE])
    return os.getpid(), token


def _renew() -> None:
    _token[:_SIZE] = os.urandom(_SIZE)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)  # where the system does not wipe
