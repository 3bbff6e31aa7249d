"""Run with HAPAX=path/to/hapax python -m unittest discover -s tests."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import faulthandler
import glob
import json
import logging
import os
import socket
import sys
import tempfile
import threading
import time
import unittest
from typing import Any
from unittest import mock

sys.path[:0] = [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "..")]

import hapax
from hapax import _http, _process
from play import Failed, TestServer, play

BINARY = os.environ.get("HAPAX", "hapax")
TRANSCRIPTS = os.path.join(os.path.dirname(__file__), "..", "..", "transcripts")


def transcript(name: str) -> str:
    (found,) = glob.glob(os.path.join(TRANSCRIPTS, name + "-*.json"))
    return found


class Transcripts(unittest.TestCase):
    def test_all(self) -> None:
        files = sorted(glob.glob(os.path.join(TRANSCRIPTS, "*.json")))
        self.assertGreater(len(files), 30)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:  # most of them wait
            # Those that fork come last, when no other thread is amid something.
            played = {f: pool.submit(play, BINARY, f) for f in files if "fork" not in f}
        for file, done in played.items():
            with self.subTest(file):
                done.result()
        play(BINARY, transcript("32"))


class LateServers(_http.Servers):
    """Of a client that takes anew, and later uses the answer that came late, too."""

    def _ask(self, server: Any, path: str, body: Any, timeout: float) -> Any:
        late = self.__dict__.setdefault("late", [])
        if late and late[0].done():
            return late.pop(0).result()
        if path.endswith("handback"):  # at the interpreter's end, when no thread is to be had
            return super()._ask(server, path, body, timeout)
        pool = concurrent.futures.ThreadPoolExecutor(1)
        asked = pool.submit(super()._ask, server, path, body, 60)
        pool.shutdown(wait=False)
        try:
            return asked.result(timeout)
        except concurrent.futures.TimeoutError:
            late.append(asked)
            raise hapax.HapaxError("unavailable", "", final=False) from None


class TrustingServers(_http.Servers):
    """Of a client that counts what a lost answer held as taken."""

    def _ask(self, server: Any, path: str, body: Any, timeout: float) -> Any:
        self.above = getattr(self, "above", 0)
        try:
            answer, named = super()._ask(server, path, body, timeout)
        except hapax.HapaxError as e:
            if e.status or path.endswith("handback"):
                raise
            answer, named = {"count": body["count"], "first": str(self.above + 1), "delta": "1", "valid_for": 60}, self.named.get("Hapax-Store", "")
        if "first" in answer:
            self.above = int(answer["first"]) + answer["count"] - 1
        return answer, named


class OpenClient(hapax.Client):
    """One that goes on with what it handed back."""

    def close(self) -> None:
        state = self._here()
        for name, line in state.lines.items():
            (kept,) = line.hand
            rest = list(kept.rest)
            kept.rest = iter(rest)
            hapax._hand_back(state, hapax._path(name), line, time.monotonic() + 1)
            kept.rest = iter(rest)
            line.hand.append(kept)


class Twins(unittest.TestCase):
    """Broken clients fail the transcripts that are about what they do wrong."""

    def caught(self, name: str, make: Any = hapax.Client) -> None:
        with self.assertRaises(Failed):
            play(BINARY, transcript(name), make)

    def test_no_look_at_the_process(self) -> None:
        with mock.patch.object(_process, "here", return_value=(0, b"")):
            self.caught("32")

    def test_only_the_process_id_in_a_new_namespace(self) -> None:
        # The ID is the same; the page is not.
        with mock.patch.object(os, "getpid", return_value=1):
            play(BINARY, transcript("32"))

    def test_uses_a_late_answer(self) -> None:
        with mock.patch.object(hapax, "Servers", LateServers):
            self.caught("10")

    def test_goes_past_the_end(self) -> None:
        with mock.patch.object(hapax._Stretch, "over", return_value=False):
            self.caught("20")

    def test_counts_a_lost_answer_as_taken(self) -> None:
        with mock.patch.object(hapax, "Servers", TrustingServers):
            self.caught("08")
            self.caught("09")

    def test_goes_on_after_a_hand_back(self) -> None:
        self.caught("29", OpenClient)


class WithServer(unittest.TestCase):
    script = "{}"

    def setUp(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            f.write(self.script)
            f.flush()
            self.server = TestServer(BINARY, f.name)
        self.addCleanup(self.server.close)

    def client(self, **options: Any) -> hapax.Client:
        client = hapax.Client(*self.server.servers, **{"deadline": 30.0, "call_timeout": 30.0, **options})
        self.addCleanup(client.close)
        return client

    def forks(self, target: Any, name: str, call: Any) -> tuple[Any, Any]:
        """What a call returns here and in a child, where a signal's handler forks as a method that
        it calls first returns."""
        real, child = getattr(target, name), -1
        read, write = os.pipe()

        def forking(*args: Any) -> Any:
            nonlocal child
            result = real(*args)
            if child < 0:
                child = os.fork()
            return result

        me = os.getpid()
        try:
            with mock.patch.object(target, name, forking):
                here = call()
            if os.getpid() != me:
                os.write(write, json.dumps(here).encode())
        finally:
            if os.getpid() != me:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as file:
            there = json.loads(file.read() or "null")
        os.waitpid(child, 0)
        return here, there


class Use(WithServer):
    def test_threads(self) -> None:
        tag = self.client().tag("orders")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            parts = list(pool.map(lambda _: [tag.next() for _ in range(5000)], range(8)))
        self.assertEqual(len({n for part in parts for n in part}), 40_000)
        for part in parts:
            self.assertEqual(part, sorted(part))
        asked = self.server.ask("/requests").count('"count"')
        self.assertLess(asked, 100, "the step does not follow the use")

    def test_asyncio(self) -> None:
        async def main() -> None:
            async with self.client(min_step=5, max_step=50) as client:
                tag = client.tag("orders")
                parts = await asyncio.gather(*(tag.atake(3) for _ in range(300)))
                self.assertEqual(len({n for part in parts for n in part}), 900)
                self.assertGreater(await tag.anext(), 0)
            with self.assertRaises(hapax.HapaxError) as raised:
                await tag.anext()
            self.assertEqual(raised.exception.code, "closed")

        asyncio.run(main())

    def test_fork_while_a_lock_is_held(self) -> None:
        client = self.client()
        client.tag("orders").next()
        line = client._state.lines["orders"]
        with line.lock:  # as by another thread
            pid = os.fork()
            if pid == 0:
                try:
                    client.tag("orders").next()
                    os._exit(0)
                except BaseException:
                    os._exit(1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)

    def test_fork_in_a_signal_handler(self) -> None:
        tag = self.client(ahead=False).tag("orders")
        for target, name in ((hapax.Tag, "_pick"), (hapax.Tag, "_take"), (_http.Servers, "_ask"), (_process, "here")):
            for hand in (0, 4):  # what is in hand before
                with self.subTest(name=name, hand=hand):
                    line = tag._line()[1]
                    while sum(stretch.left for stretch in line.hand) != hand or not line.last:
                        tag.next()
                    here, there = self.forks(target, name, lambda: tag.take(12))
                    self.assertEqual((len(set(here)), len(set(there))), (12, 12))
                    self.assertFalse(set(here) & set(there), "one number in two processes")

    def steps(self, every: int, prepare: Any, call: Any) -> Any:
        """Makes a call again and again, and does something amid each: as a signal's handler would, one step of the
        interpreter later each time, and with the tag that prepare returns."""
        self.addCleanup(faulthandler.cancel_dump_traceback_later)
        files = {hapax.__file__, _http.__file__}
        for at in range(1, 100_000, every):
            faulthandler.dump_traceback_later(120, exit=True)  # in place of waiting for itself
            tag, handler = prepare()
            step = 0

            def trace(frame: Any, event: str, _: Any) -> Any:
                nonlocal step
                if frame.f_code.co_filename not in files:
                    return None
                frame.f_trace_opcodes = True
                step += event == "opcode"
                if event == "opcode" and step == at:
                    handler()
                return trace

            got: Any = None
            sys.settrace(trace)
            try:
                got = call(tag)
            except (hapax.HapaxError, KeyboardInterrupt) as e:
                got = e
            finally:
                sys.settrace(None)
            if step < at:
                return self.assertGreater(at, 300, "too few steps")
            with self.subTest(at=at):
                yield tag, got

    def tag_with(self, hand: int, **options: Any) -> hapax.Tag:
        tag = self.client(ahead=False, min_step=3, max_step=3, deadline=5.0, **options).tag("orders")
        tag.take(3 - hand)
        return tag

    def test_a_signals_handler_takes_numbers(self) -> None:
        for hand in (0, 2):
            handlers: list[int] = []

            def prepare(hand: int = hand) -> Any:
                tag = self.tag_with(hand)
                handlers.clear()
                return tag, lambda: handlers.extend(tag.take(4))

            for _, got in self.steps(5, prepare, lambda tag: tag.take(5)):
                self.assertEqual(len({*got, *handlers}), 9, f"{got} and {handlers}")

    def test_a_signals_handler_closes(self) -> None:
        def prepare() -> Any:
            tag = self.tag_with(2)
            return tag, tag._client.close

        given: set[int] = set()
        for tag, got in self.steps(5, prepare, lambda tag: tag.take(5)):
            got = [] if isinstance(got, hapax.HapaxError) else got
            self.assertFalse(given & set(got), f"{got} came twice")
            given |= set(got)

    def test_an_exception_of_a_signals_handler(self) -> None:
        def prepare() -> Any:
            def interrupt() -> None:
                raise KeyboardInterrupt

            return self.tag_with(0), interrupt

        given: set[int] = set()
        with mock.patch.object(hapax, "_GRACE", 0.0):
            for tag, got in self.steps(5, prepare, lambda tag: tag.take(5, 0.05)):
                self.assertIsInstance(got, KeyboardInterrupt)
                with mock.patch.object(threading, "get_ident", return_value=0):  # as in another thread
                    again = tag.take(5)
                self.assertFalse(given & set(again), f"{again} came twice")
                given |= set(again)

    def test_no_thread_to_be_had(self) -> None:
        tag = self.client(deadline=5.0).tag("orders")

        async def main() -> None:
            with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
                with self.assertRaises(hapax.HapaxError) as raised:
                    await tag.anext()
            self.assertEqual(raised.exception.code, "unavailable")
            self.assertEqual(await tag.anext(), 1)

        asyncio.run(main())
        self.assertEqual(tag.next(), 2)

    def test_servers_that_hang_before_one_that_answers(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as hangs:
            url = "http://127.0.0.1:%d" % hangs.getsockname()[1]
            client = hapax.Client(url, url, *self.server.servers, deadline=0.5, call_timeout=0.3)
            self.addCleanup(client.close)
            first = client._state.servers._all[0]
            with self.assertRaises(hapax.HapaxError):
                client.tag("orders").next()
            self.assertIsNot(client._state.servers._all[0], first, "its time never reaches the last")
            self.assertEqual(client.tag("orders").next(deadline=30.0), 1)

    def test_fork_while_asyncio_waits(self) -> None:
        async def main() -> None:
            async with self.client(ahead=False) as client:
                tag = client.tag("orders")
                self.assertEqual(await tag.anext(), 1)
                here, pick = _process.here(), hapax.Tag._pick
                parents: list[int] = []

                def forked(tag: Any, count: int, got: Any, until: float) -> Any:
                    if got and not parents:  # as in a child that goes on with what its parent had
                        parents.extend(n for _, numbers in got for n in numbers)
                        mock.patch.object(_process, "here", return_value=(here[0] + 1, here[1])).start()
                    return pick(tag, count, got, until)

                with mock.patch.object(hapax.Tag, "_pick", forked):
                    got = await tag.atake(12)
                mock.patch.stopall()
                self.assertEqual((len(set(got)), len(parents)), (12, 9))
                self.assertFalse(set(got) & set(parents), "one number in two processes")

        asyncio.run(main())

    def test_fork_does_not_hand_back_the_parents(self) -> None:
        client = self.client(ahead=False)
        self.assertEqual(client.tag("orders").next(), 1)
        pid = os.fork()
        if pid == 0:
            client.close()
            os._exit(0)
        os.waitpid(pid, 0)
        self.assertNotIn("handback", self.server.ask("/requests"))

    def test_wrong_settings(self) -> None:
        for servers, options in (
            ((), {}), (("ftp://x",), {}), (("http://u:secret@x",), {}), (("http://x",), {"token": "a b"}),
            (("http://x",), {"min_step": 0}), (("http://x",), {"min_step": 2, "max_step": 1}), (("http://x",), {"deadline": 0}),
        ):
            with self.subTest(servers=servers, options=options), self.assertRaises(hapax.HapaxError) as raised:
                hapax.Client(*servers, **options)
            self.assertEqual(raised.exception.code, "invalid_argument")
            self.assertNotIn("secret", str(raised.exception))


class Codes(WithServer):
    script = '{"tags":{"invoices":{"code":"INV-{id:6}{check}"}}}'

    def test_fork_in_a_signal_handler_amid_codes(self) -> None:
        here, there = self.forks(_http.Servers, "_ask", lambda: [code.id for code in self.client().tag("invoices").codes(3)])
        self.assertEqual((len(here), len(there)), (3, 3))
        self.assertFalse(set(here) & set(there), "one number in two processes")


class Hostile(WithServer):
    first = '"count":1,"first":"1","delta":"1","valid_for":60'
    bodies = (
        "", "{", '{"a":' + "[" * 100_000, "{}", '{"count":1}', '{"count":1e0,"first":"1","delta":"1"}', '{"count":0,"ids":[]}', '{"count":11,"first":"1","delta":"1"}',
        '{"count":1,"first":1,"delta":"1"}', '{"count":1,"first":"-1","delta":"1"}', '{"count":1,"first":"9223372036854775808","delta":"1"}',
        '{"count":2,"first":"9223372036854775807","delta":"1"}', '{"count":2,"first":"1","delta":"0"}', '{"count":2,"first":"5","delta":"-1"}',
        '{"count":1,"first":"' + "9" * 100_000 + '","delta":"1"}', '{"count":2,"ids":["1"]}', '{"count":1,"ids":[1]}',
        "{" + first.replace("60", "-1") + "}", "{" + first.replace("60", "1" + "0" * 400) + "}", "{" + first.replace("60", "[]") + "}",
        "{" + first + ',"returnable":[1]}', "{" + first + ',"returnable":1e999}', "{" + first + ',"returnable":"x"}',
    )
    script = json.dumps({"servers": [{"faults": [{"at": i + 1, "do": "answer", "status": 200, "body": body} for i, body in enumerate(bodies)]}]})

    def test_answers_without_numbers(self) -> None:
        tag = self.client(ahead=False).tag("orders")
        for body in self.bodies:
            # It asks once; one that gave up sooner might be answered after the next.
            with self.subTest(body[:99]), mock.patch.object(hapax, "_PAUSE", 3600.0), self.assertRaises(hapax.HapaxError) as raised:
                self.fail(str(tag.next()))
            self.assertEqual(raised.exception.code, "unavailable")
            self.assertLess(len(str(raised.exception)), 300)
        self.assertEqual(tag.next(), 1)


class Slow(WithServer):
    script = '{"servers":[{"faults":[{"at":1,"do":"delay","ms":60000}]}]}'

    def test_cancelled_and_late(self) -> None:
        tag = self.client(ahead=False).tag("orders")

        async def main() -> None:
            waiting = asyncio.create_task(tag.anext())
            while '"take"' not in self.server.ask("/requests") and "/take" not in self.server.ask("/requests"):
                await asyncio.sleep(0.01)
            waiting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            with self.assertRaises(hapax.HapaxError) as raised:
                await tag.anext(deadline=0.1)
            self.assertEqual(raised.exception.code, "unavailable")

        asyncio.run(main())
        with self.assertRaises(hapax.HapaxError) as raised:
            tag.next(deadline=0.1)
        self.assertEqual(raised.exception.code, "unavailable")
        self.assertTrue(threading.active_count() < 10)

    def test_a_loop_that_ends_before_the_answer(self) -> None:
        tag = self.client(ahead=False, call_timeout=0.5).tag("orders")

        async def main() -> None:
            given_up = asyncio.create_task(tag.anext())
            while "/take" not in self.server.ask("/requests"):
                await asyncio.sleep(0.01)
            given_up.cancel()
            with contextlib.suppress(hapax.HapaxError):
                await tag.anext(deadline=0.01)

        with self.assertLogs() as logs:
            logging.warning("else it fails where there is none")
            asyncio.run(main())
            for thread in threading.enumerate():
                if thread.name == "hapax":
                    thread.join()
        self.assertEqual([line for line in logs.output if "hapax" not in line], ["WARNING:root:else it fails where there is none"])


class Failing(WithServer):
    script = '{"servers":[{"faults":[{"at":1,"do":"fail","code":"refill_pending"},{"at":2,"do":"delay","ms":600000}]}]}'

    def test_last_code_of_anothers_fetch(self) -> None:
        tag = self.client(ahead=False).tag("orders")

        def fetch() -> None:
            with contextlib.suppress(hapax.HapaxError):
                tag.next()

        threading.Thread(target=fetch, daemon=True).start()
        while self.server.ask("/requests").count("/take") < 2:
            time.sleep(0.01)
        with self.assertRaises(hapax.HapaxError) as raised:
            tag.next(deadline=0.1)
        self.assertEqual(raised.exception.code, "refill_pending")
        with self.assertRaises(hapax.HapaxError) as raised:
            asyncio.run(tag.anext(deadline=0.1))
        self.assertEqual(raised.exception.code, "refill_pending")


if __name__ == "__main__":
    unittest.main()
