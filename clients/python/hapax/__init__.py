"""Unique numbers from hapax servers: https://hapax-id.github.io

    client = hapax.Client("http://127.0.0.1:8080")
    number = client.tag("orders").next()

A client takes stretches of numbers and hands them out from memory. It is safe for threads,
for asyncio, and across fork.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import itertools
import operator
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from time import monotonic as _now
from typing import Any, NamedTuple, Optional, TypeVar
from urllib.parse import quote

from . import _process
from ._http import HapaxError, Servers, log

__all__ = ["Client", "Code", "HapaxError", "Tag"]

_T = TypeVar("_T")

_MAX_COUNT, _MAX_TAGS = 1_000_000, 10_000
_MAX_NUMBER = (1 << 63) - 1
_QUICK, _SLOW = 5.0, 20.0  # seconds that a stretch lasts, around the ten that it should
_PAUSE, _MAX_PAUSE = 0.05, 1.0  # seconds after all servers were asked in vain
_HAND_BACK, _GRACE = 1.0, 1.0  # seconds for an answer to a hand-back, and for a fetch to say why it failed


class Code(NamedTuple):
    """A number of a tag that has a code."""

    id: int
    text: str
    period: str  # empty where numbers never restart


class _Stretch:
    """Numbers that were taken, and those of them that nobody was given yet."""

    def __init__(self, answer: dict[str, Any], asked: int, sent: float, sent_wall: float) -> None:
        numbers = _numbers(answer, asked)
        self.count, self.began = len(numbers), 0.0
        self.rest = iter(numbers)  # one step takes a number: a signal's handler may take others amid anything
        self.receipt: Optional[str] = answer.get("receipt") or None
        self.returnable = int(answer.get("returnable") or 0)
        valid = answer.get("valid_for", 0)
        if isinstance(valid, bool) or not isinstance(valid, (int, float)) or not valid >= 0:
            raise ValueError("valid_for")
        self.keeps = valid > 0
        self._ends, self._ends_wall = sent + valid, sent_wall + valid

    @property
    def left(self) -> int:
        return operator.length_hint(self.rest)

    def over(self) -> bool:
        # The monotonic clock may stand still while a machine sleeps.
        return _now() >= self._ends or time.time() >= self._ends_wall


def _numbers(answer: dict[str, Any], asked: int) -> Sequence[int]:
    count = answer.get("count")
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= asked:
        raise ValueError("count")
    if "first" in answer:
        first, delta = _integer(answer["first"]), _integer(answer.get("delta"))
        if first + (count - 1) * delta > _MAX_NUMBER:
            raise ValueError("first")
        return range(first, first + count * delta, delta)
    ids = answer.get("ids")
    if not isinstance(ids, list) or len(ids) != count:
        raise ValueError("ids")
    return [_integer(text) for text in ids]


def _integer(text: Any) -> int:
    if not isinstance(text, str) or len(text) > 19 or not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MAX_NUMBER:
        raise ValueError(f"{text!r:.40} is no number")
    return int(text)


def _codes(answer: dict[str, Any], asked: int) -> list[Code]:
    numbers, texts = _numbers(answer, asked), answer.get("codes")
    if not isinstance(texts, list) or len(texts) != len(numbers):
        raise ValueError("codes")
    return [Code(n, str(text), str(answer.get("period") or "")) for n, text in zip(numbers, texts)]


class _Line:
    """What a process has in hand of a tag."""

    def __init__(self, step: int) -> None:
        # For one thread at a time, not held while waiting. The handler of a signal may take numbers amid what the
        # same thread does: so each step leaves the rest whole, and a fetch, whose thread that may hold up, needs no lock.
        self.lock = threading.RLock()
        self.hand: list[_Stretch] = []  # the current one, and the next
        self.fetch: Optional[_Fetch] = None  # the one on its way
        self.step = step
        self.last: Optional[str] = None  # the latest receipt
        self.dead = False  # it was handed back
        self.keeps = True  # False: every number is for the call that takes it
        self.pause, self.retry_at = _PAUSE, 0.0  # after a fetch ahead that failed
        self.said: Optional[HapaxError] = None  # the last that a server said since the fetch began


class _Fetch(concurrent.futures.Future[None]):
    """What calls wait for. One that is not its line's is for the call alone that makes it."""

    def __init__(self, line: _Line, until: float) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()  # a caller that is cancelled leaves it to the others
        self.line, self.until = line, until + _GRACE  # then it was cut off by an exception, as of a signal's handler
        self.maker: Optional[int] = threading.get_ident()  # the thread that waits for servers
        self.failed: Optional[BaseException] = None

    def run(self, make: Callable[[], None]) -> None:
        try:
            make()
        except BaseException as e:  # noqa: BLE001
            self.failed = e
        self.end()

    def end(self) -> None:
        if self.line.fetch is self:
            self.line.fetch = None
        self.set_result(None)


class _Got(list[tuple[_Stretch, list[int]]]):
    """What a call has got of which stretches, for the process in which it got it."""

    here: tuple[int, bytes] = (0, b"")


class _State:
    """What a client has in one process. A forked child begins with another one: the locks of
    this one may be held there by threads that do not exist."""

    def __init__(self, servers: Servers, closed: bool) -> None:
        self.here, self.servers = _process.here(), servers
        self.lines: dict[str, _Line] = {}
        self.closed, self.changed = closed, threading.Condition()


class Client:
    """Takes numbers from servers that share one store.

    token: with the scopes issue and lease, or issue alone; then nothing is handed back.
    ca: a file with the certificates that sign the servers'; or tls: how to speak TLS.
    min_step, max_step: how many numbers are fetched at once.
    ahead: whether the next stretch is fetched in the background. Without, the program may be
        frozen between calls.
    deadline: seconds that a call waits for numbers. call_timeout: seconds that one server may take.
    """

    def __init__(
        self, *servers: str, token: Optional[str] = None, ca: Optional[str] = None, tls: Optional[ssl.SSLContext] = None,
        min_step: int = 10, max_step: int = 100_000, ahead: bool = True, deadline: float = 5.0, call_timeout: float = 3.0,
    ) -> None:
        if not servers:
            raise _invalid("no server: want at least one, such as http://127.0.0.1:8080")
        if token is not None and (not token or not all("!" <= c <= "~" for c in token)):
            raise _invalid("invalid token (not shown): want one as hapax token new prints it")
        if not 1 <= min_step <= max_step <= _MAX_COUNT:
            raise _invalid(f"invalid min_step {min_step} and max_step {max_step}: want 1 to {_MAX_COUNT:,}, the first no more than the second")
        for name, value in (("deadline", deadline), ("call_timeout", call_timeout)):
            if not 0 < value <= 3600:
                raise _invalid(f"invalid {name} {value}: want more than 0, up to 3600 seconds")
        if tls is None and (ca or any(url.startswith("https:") for url in servers)):
            tls = ssl.create_default_context(cafile=ca)
        self._servers = functools.partial(Servers, servers, token, tls, call_timeout)
        self._min, self._max, self._ahead, self._deadline = min_step, max_step, ahead, deadline
        self._state = _State(self._servers({}), False)
        _clients.add(self)

    def tag(self, name: str) -> Tag:
        """The numbers of a tag, which its first use creates unless the servers forbid that."""
        return Tag(self, name)

    def close(self) -> None:
        """Hands back what is in hand. Later calls fail with the code closed."""
        state = self._here()
        state.closed = True
        with state.changed:
            state.changed.notify_all()
        until = _now() + _HAND_BACK
        for name, line in list(state.lines.items()):
            _hand_back(state, _path(name), line, until)
        state.servers.close()

    async def aclose(self) -> None:
        """close for asyncio."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _here(self) -> _State:
        """What this process has: a child begins with nothing."""
        state = self._state
        if state.here != _process.here():
            self._state = state = _State(self._servers(state.servers.named), state.closed)
        return state


class Tag:
    """A tag's numbers. Make it once or each time: it holds nothing."""

    __slots__ = ("name", "_client", "_path")

    def __init__(self, client: Client, name: str) -> None:
        if not 1 <= len(name.encode()) <= 128:
            raise HapaxError("invalid_tag", f"invalid tag of {len(name.encode())} bytes: want 1 to 128", final=True)
        self.name, self._client, self._path = name, client, _path(name)

    def next(self, deadline: Optional[float] = None) -> int:
        """One number, which nobody else gets. deadline: seconds to wait if none is in hand."""
        return self.take(1, deadline)[0]

    def take(self, count: int, deadline: Optional[float] = None) -> list[int]:
        """Several numbers."""
        until = self._until(count, deadline)
        got = _Got()
        while True:
            fetch, make = self._pick(count, got, until)
            if fetch is None:
                return [n for _, numbers in got for n in numbers]
            if make is not None:
                fetch.run(make)  # here, and not in another thread: some servers of applications run none
            try:
                fetch.result(max(0.0, min(until, fetch.until) - _now()))
            except concurrent.futures.TimeoutError:
                self._late(until)
            if make is not None and fetch.failed is not None:
                raise fetch.failed

    async def anext(self, deadline: Optional[float] = None) -> int:
        """next for asyncio."""
        return (await self.atake(1, deadline))[0]

    async def atake(self, count: int, deadline: Optional[float] = None) -> list[int]:
        """take for asyncio. A caller that is cancelled leaves what was fetched to the others."""
        until = self._until(count, deadline)
        got = _Got()
        while True:
            fetch, make = self._pick(count, got, until)
            if fetch is None:
                return [n for _, numbers in got for n in numbers]
            if make is not None:
                _in_thread(fetch, make)
            try:
                await asyncio.wait_for(asyncio.wrap_future(fetch), max(0.0, (fetch.until if make else min(until, fetch.until)) - _now()))
            except (TimeoutError, asyncio.TimeoutError):
                self._late(until)
            if make is not None and fetch.failed is not None:
                raise fetch.failed

    def codes(self, count: int = 1, deadline: Optional[float] = None) -> list[Code]:
        """Several numbers with the texts that show them. None is kept for later."""
        until = self._until(count, deadline)
        while True:
            state, line = self._line()
            codes = self._persist(state, line, count, until, True, lambda _: state.servers.ask(self._path + "/take", {"count": count, "codes": True}, until, lambda answer, *_: _codes(answer, count)))
            if state.here == _process.here():  # else a signal's handler forked, and they are the parent's
                return codes

    def _late(self, until: float) -> None:
        if _now() >= until:  # else the fetch was cut off, and another one is to be made
            said = self._line()[1].said or HapaxError("unavailable", "", final=False)
            raise HapaxError(said.code, f"no number of {self.name!r} came in time", final=False, status=said.status, retry_after=said.retry_after) from None

    def _until(self, count: int, deadline: Optional[float]) -> float:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MAX_COUNT:
            raise _invalid(f"invalid count {count!r}: want 1 to {_MAX_COUNT:,}")
        return _now() + (self._client._deadline if deadline is None else deadline)

    def _line(self) -> tuple[_State, _Line]:
        state = self._client._here()  # before any lock
        if state.closed:
            raise _closed()
        line = state.lines.get(self.name)
        if line is None:
            if len(state.lines) >= _MAX_TAGS:
                raise HapaxError("limit_exceeded", f"this client has {_MAX_TAGS:,} tags already; make another one for more", final=True)
            line = state.lines.setdefault(self.name, _Line(self._client._min))
        return state, line

    def _pick(self, count: int, got: _Got, until: float) -> tuple[Optional[_Fetch], Optional[Callable[[], None]]]:
        """Adds what is in hand to what a call has got. If that is not enough, it returns the fetch
        to wait for, and how to make it, where that is the caller's to do."""
        state, line = self._line()
        if got.here != state.here:  # a signal's handler forked while this call waited: they are the parent's
            got.clear()
            got.here = state.here
        got[:] = [part for part in got if not (part[0].keeps and part[0].over())]  # some may have ended while the call waited
        with line.lock:
            while (need := count - sum(len(numbers) for _, numbers in got)) > 0 and (stretch := self._advance(line)) is not None:
                got.append((stretch, list(itertools.islice(stretch.rest, need))))
            enough = need == 0
            fetch = begun if (begun := line.fetch) is not None and _now() < begun.until else None
            mine: Optional[_Fetch] = None
            half = [2 * stretch.left <= stretch.count for stretch in line.hand] == [True]
            ahead = self._client._ahead and line.keeps and half and _now() >= line.retry_at
            if fetch is None and (ahead or not enough):
                line.fetch = fetch = mine = _Fetch(line, _now() + self._client._deadline if enough else until)
                line.said = None
            elif fetch is not None and not enough and fetch.maker == threading.get_ident():
                fetch = mine = _Fetch(line, until)  # this is a signal's handler, amid what makes the other one
        if state.here != _process.here():  # or while it held the lock
            if mine is not None:
                mine.end()
            return self._pick(count, got, until)
        if enough:
            if mine is not None:
                _in_thread(mine, functools.partial(self._fetch_ahead, state, mine))
            return None, None
        if fetch is not mine or mine is None:
            return fetch, None
        take = functools.partial(self._take, state, mine, need, until, got)
        return mine, lambda: self._persist(state, line, need, until, line.fetch is not mine, take)

    def _advance(self, line: _Line) -> Optional[_Stretch]:
        """Leaves stretches that are used up or over, and lets the step follow. It returns one that has a number."""
        while (current := next(iter(line.hand), None)) is not None:
            current.began = current.began or _now()
            if current.left > 0 and not current.over():
                return current
            lasted = _now() - current.began
            if current.left == 0 and lasted < _QUICK:
                line.step = min(self._client._max, 2 * line.step)
            elif lasted > _SLOW:
                line.step = max(self._client._min, line.step // 2)
            with contextlib.suppress(ValueError):  # a signal's handler has left it
                line.hand.remove(current)
        return None

    def _take(self, state: _State, fetch: _Fetch, need: int, until: float, got: _Got, count: int) -> None:
        """Asks every server once for the next stretch. What must not be kept goes to the call, which needs so many."""
        line = fetch.line
        after = {"after": line.last} if line.last else {}
        stretch = state.servers.ask(self._path + "/take", {"count": count, **after}, until, lambda answer, *sent: _Stretch(answer, count, *sent))
        if line.dead:
            return  # a hand-back was sent
        line.keeps = line.keeps and stretch.keeps  # for good
        if not line.keeps or line.fetch is not fetch:
            got.append((stretch, list(itertools.islice(stretch.rest, need))))
            return
        line.last, line.pause, line.retry_at = stretch.receipt, _PAUSE, 0.0
        line.hand.append(stretch)

    def _fetch_ahead(self, state: _State, fetch: _Fetch) -> None:
        """Fetches the next stretch, and disturbs nobody if that fails."""
        line = fetch.line
        try:
            self._take(state, fetch, 0, _now() + self._client._deadline, _Got(), line.step)
        except HapaxError as e:
            line.retry_at = _now() + max(line.pause, e.retry_after)
            line.pause = min(_MAX_PAUSE, 2 * line.pause)
            if e.status in (429, 507):
                line.step = self._client._min
            log.debug("fetching %r ahead: %s", self.name, e)

    def _persist(self, state: _State, line: _Line, need: int, until: float, modest: bool, ask: Callable[[int], _T]) -> _T:
        """Asks until a server answers, or the deadline is over. modest: for no more than is needed."""
        pause = _PAUSE
        said: Optional[HapaxError] = None  # the last that a server said
        while not state.closed:
            count = need if modest or not line.keeps else min(_MAX_COUNT, max(line.step, need))
            try:
                return ask(count)
            except HapaxError as e:
                said = e if said is None or e.status else said
                full = e.status == 507
                wait = 0.0 if full else max(pause, e.retry_after)
                if e.final or (count == need if full else _now() + wait >= until):
                    raise e if e.final else said
                if e.status in (429, 507):
                    modest, line.step = True, self._client._min
                line.said, pause = said, (pause if full else min(_MAX_PAUSE, 2 * pause))
                with state.changed:
                    state.changed.wait_for(lambda: state.closed, wait)
        raise _closed()


def _in_thread(fetch: _Fetch, make: Callable[[], None]) -> None:
    """Makes a fetch elsewhere."""
    thread = threading.Thread(target=fetch.run, args=(make,), name="hapax", daemon=True)
    try:
        thread.start()
        fetch.maker = thread.ident
    except RuntimeError as e:  # there are too many, or the interpreter ends
        fetch.failed = HapaxError("unavailable", f"no thread to fetch with: {e}", final=False)
        fetch.end()


def _hand_back(state: _State, path: str, line: _Line, until: float) -> None:
    """Hands back what nobody was given. From here on it is dead, whatever the answer."""
    concurrent.futures.wait([fetch for fetch in [line.fetch] if fetch and fetch.maker != threading.get_ident()], max(0.0, until - _now()))
    with line.lock:
        line.dead = True
        left = [(stretch, sum(1 for _ in stretch.rest)) for stretch in line.hand]  # of which none is left now
        line.hand.clear()
    last, unused = left[-1] if left else (None, 0)
    earlier = sum(count for _, count in left[:-1])
    if last and last.returnable >= unused + earlier:
        unused += earlier  # the stretches adjoin
    if last is None or last.receipt is None or unused < 1:
        return
    try:
        state.servers.ask(path + "/handback", {"receipt": last.receipt, "unused": unused}, until, lambda *_: None)
    except HapaxError as e:
        log.debug("handing back: %s", e)  # a gap


def _path(tag: str) -> str:
    return "/v1/tags/" + (quote(tag, safe="") if tag.strip(".") else tag.replace(".", "%2E"))


def _invalid(detail: str) -> HapaxError:
    return HapaxError("invalid_argument", detail, final=True)


def _closed() -> HapaxError:
    return HapaxError("closed", "the client was closed", final=True)


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    for client in list(_clients):
        client.close()
