"""Plays the client's part of transcripts: python play.py HAPAX FILE... prints a line for each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import hapax


class Failed(Exception):
    """What was not as the transcript has it."""


class TestServer:
    """hapax testserver, which ends with this process."""

    def __init__(self, binary: str, script: str) -> None:
        self.process = subprocess.Popen(
            [binary, "testserver", "--http", "127.0.0.1:0", "--until-eof", "--script", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.servers: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            what, _, url = line.strip().partition(" ")
            if what == "ready":
                break
            if what == "server":
                self.servers.append(url)
            else:
                self.control = url
        if not self.servers:
            raise Failed(f"the test server ended with {self.process.wait()}")

    def ask(self, path: str, body: Any = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self.control + path, data), timeout=60) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as e:
            raise Failed(e.read().decode()) from None

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def play(binary: str, file: str, make: Any = hapax.Client) -> None:
    """Plays one transcript, or raises Failed."""
    with open(file) as f:
        script = json.load(f)
    server = TestServer(binary, file)
    try:
        options = script.get("client", {})
        client = make(
            *server.servers,
            token=options.get("token"),
            min_step=options.get("min_step", 10),
            max_step=options.get("max_step", 100_000),
            ahead=options.get("ahead", True),
            deadline=options.get("deadline_ms", 5000) / 1000,
            call_timeout=options.get("call_timeout_ms", 3000) / 1000,
        )
        seen: set[tuple[str, int]] = set()
        for i, step in enumerate(script["steps"]):
            try:
                do(client, server, step, seen)
            except Failed as e:
                raise Failed(f"step {i + 1}, {step}: {e}") from None
        server.ask("/check")
    finally:
        server.close()


def do(client: Any, server: TestServer, step: dict[str, Any], seen: set[tuple[str, int]]) -> None:
    kind = step["do"]
    if kind == "sleep":
        time.sleep(step["ms"] / 1000)
    elif kind == "requests":
        server.ask(f"/requests?done={step['done']}")
    elif kind == "server":
        server.ask("/do", step["fault"])
    elif kind == "close":
        client.close()
    elif kind == "fork":
        new(step["tag"], forked(client, step), seen)
    else:
        call(client, step, seen)


def call(client: Any, step: dict[str, Any], seen: set[tuple[str, int]]) -> None:
    got: list[str] = []
    numbers: list[int] = []
    try:
        tag = client.tag(step["tag"])
        if step["do"] == "next":
            for _ in range(step.get("times", 1)):
                numbers.append(tag.next())
        elif step["do"] == "take":
            numbers = tag.take(step["count"])
        else:
            got = [code.text for code in tag.codes(step["count"])]
    except hapax.HapaxError as e:
        if e.code != step.get("error"):
            raise Failed(f"{e.code}: {e}") from e
        return
    if "error" in step:
        raise Failed(f"no error, but {numbers or got}")
    if step["do"] != "codes":
        new(step["tag"], numbers, seen)
        got = [str(n) for n in numbers]
    if "want" in step and got != step["want"]:
        raise Failed(f"got {got}")


def new(tag: str, numbers: list[int], seen: set[tuple[str, int]]) -> None:
    for n in numbers:
        if (tag, n) in seen:
            raise Failed(f"{n} came twice")
        seen.add((tag, n))


def forked(client: Any, step: dict[str, Any]) -> list[int]:
    """Takes numbers in a child and here."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, json.dumps([client.tag(step["tag"]).next() for _ in range(step["times"])]).encode())
        finally:
            os._exit(0)
    os.close(write)
    here = [client.tag(step["tag"]).next() for _ in range(step["times"])]
    with os.fdopen(read) as child:
        there = json.loads(child.read() or "[]")
    os.waitpid(pid, 0)
    if len(there) != step["times"]:
        raise Failed("the child got no numbers")
    return here + list(there)


if __name__ == "__main__":
    failed = 0
    for name in sys.argv[2:]:
        try:
            play(sys.argv[1], name)
            print("ok", os.path.basename(name))
        except Failed as e:
            failed += 1
            print("FAILED", os.path.basename(name), e)
    sys.exit(failed > 0)
