"""Asks servers: one until it fails, and then the next."""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import json
import logging
import re
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Optional, TypeVar
from urllib.parse import urlsplit

from . import _process

_T = TypeVar("_T")

log = logging.getLogger("hapax")

_STORE = "Hapax-Store"
_MAX_ANSWER = 64 << 20  # bytes
_MAX_IDLE, _IDLE_FOR = 4, 30.0  # connections kept for each server, and the seconds for which they are
_REST = 1.0  # seconds for which a server that failed is asked last
_REFUSED = {400, 401, 403, 404, 405, 409, 410, 413, 415, 501}


class HapaxError(Exception):
    """Says why there is no number. Branch on its code, which is the server's, or one of
    invalid_argument, invalid_tag, closed and unavailable. status is that of HTTP, 0 if no server
    said so; final: asking again will not help; retry_after: seconds."""

    def __init__(self, code: str, detail: str, *, final: bool, status: int = 0, retry_after: float = 0.0) -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code, self.status, self.final, self.retry_after = code, status, final, retry_after


class _Timed(io.RawIOBase):
    """Reads from a socket until a deadline, however slowly the answer comes."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock, self._deadline = sock, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        self._sock.settimeout(left)
        return self._sock.recv_into(into)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """What http.client asks a socket for."""
        return io.BufferedReader(self)


class Server:
    """One of the addresses."""

    def __init__(self, url: str, tls: Optional[ssl.SSLContext]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
            shown = "(not shown)" if "@" in url else repr(url)
            raise HapaxError("invalid_argument", f"invalid server {shown}: want one such as http://127.0.0.1:8080", final=True)
        self.name = f"{parts.scheme}://{parts.netloc}"
        self.rests_until = 0.0
        kind = functools.partial(http.client.HTTPSConnection, context=tls) if parts.scheme == "https" else http.client.HTTPConnection
        self._connect = functools.partial(kind, parts.hostname, parts.port)
        self._path = parts.path.rstrip("/")
        self.idle: list[tuple[http.client.HTTPConnection, float]] = []
        self._here = _process.here()

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self._here != _process.here():  # a child goes on with a call of its parent, whose connections they are
            self.idle, self._here = [], _process.here()
        with contextlib.suppress(IndexError):
            while True:  # another may take the last one
                connection, since = self.idle.pop()
                if time.monotonic() - since < _IDLE_FOR:
                    return connection
                connection.close()
        return self._connect(timeout=timeout)

    def post(self, path: str, body: bytes, headers: dict[str, str], timeout: float) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Sends one request, and returns all of its answer, or raises OSError or HTTPException."""
        deadline = time.monotonic() + timeout
        connection = self._connection(timeout)
        try:
            if connection.sock is None:
                connection.connect()
            sock: Any = connection.sock
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            # A time-out of the socket would begin anew with each byte.
            connection.response_class = lambda sock, **kw: http.client.HTTPResponse(_Timed(sock, deadline), **kw)  # type: ignore
            connection.request("POST", self._path + path, body, headers)
            answer = connection.getresponse()
            data = answer.read(_MAX_ANSWER + 1)
            if len(data) > _MAX_ANSWER:
                raise http.client.HTTPException("the answer is too long")
            if answer.isclosed() and not answer.will_close and len(self.idle) < _MAX_IDLE:
                self.idle.append((connection, time.monotonic()))
            else:
                connection.close()
            return answer.status, answer.headers, data
        except BaseException:
            connection.close()
            raise


class Servers:
    """The servers of one client, in one process."""

    def __init__(self, urls: Sequence[str], token: Optional[str], tls: Optional[ssl.SSLContext], call_timeout: float, named: dict[str, str]) -> None:
        self._all = [Server(url, tls) for url in urls]  # the one to ask first comes first
        self._headers = {"Content-Type": "application/json", "User-Agent": "hapax-python/1"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._call_timeout = call_timeout
        self.named = dict(named)  # the header that names the store

    def ask(self, path: str, body: dict[str, Any], deadline: float, read: Callable[[dict[str, Any], float, float], _T]) -> _T:
        """Asks each server once, until one gives an answer that can be read, with the times at
        which it was asked. An error of a value says that it cannot."""
        now, order = time.monotonic(), self._all
        last: Optional[HapaxError] = None
        soonest = 3600.0
        for server in sorted(order, key=lambda s: s.rests_until > now):  # is stable
            at = order.index(server)
            sent, sent_wall = time.monotonic(), time.time()
            if sent >= deadline:
                break
            try:
                answer, named = self._ask(server, path, body, min(deadline - sent, self._call_timeout))
                result = read(answer, sent, sent_wall)
                if named is None or self.named.setdefault(_STORE, named) != named:  # the first answer with numbers names it
                    raise HapaxError("store_replaced", f"{server.name} has another store than the servers before; its numbers are not used", final=False, status=503)
                self._all = order[at:] + order[:at]
                return result
            except HapaxError as e:
                if e.final or e.status in (429, 507):
                    raise
                failed = e
            except (ValueError, TypeError, ArithmeticError) as e:
                failed = HapaxError("unavailable", f"{server.name} answered with something else than numbers: {e}", final=False)
            self._all = order[at + 1 :] + order[: at + 1]  # else the time may never reach those after some that hang
            server.rests_until = time.monotonic() + max(_REST, failed.retry_after)
            soonest = min(soonest, failed.retry_after)
            log.warning("%s: %s", server.name, failed)
            last = failed if last is None or failed.status else last
        if last is None:
            raise HapaxError("unavailable", "no server answered in time", final=False)
        last.retry_after = soonest
        raise last

    def _ask(self, server: Server, path: str, body: dict[str, Any], timeout: float) -> tuple[dict[str, Any], Optional[str]]:
        try:
            status, answered, data = server.post(path, json.dumps(body).encode(), {**self._headers, **self.named}, timeout)
        except (OSError, http.client.HTTPException) as e:
            raise HapaxError("unavailable", f"{server.name} did not answer: {e!r}", final=False) from e
        answer: dict[str, Any] = {}
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            answer = {**json.loads(data)}
        if status != 200:
            raise _refusal(server, status, answered, answer)
        return answer, answered.get(_STORE)

    def close(self) -> None:
        for server in self._all:
            for connection, _ in server.idle:
                connection.close()


def _refusal(server: Server, status: int, headers: http.client.HTTPMessage, answer: dict[str, Any]) -> HapaxError:
    code = answer.get("code")
    if not isinstance(code, str):
        return HapaxError("unavailable", f"{server.name} answered with status {status}; is it a hapax server?", final=False)
    after = re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", headers.get("Retry-After", ""))
    return HapaxError(code, str(answer.get("detail") or answer.get("title") or ""), final=status in _REFUSED, status=status, retry_after=min(float(after[0]), 3600.0) if after else 0.0)
