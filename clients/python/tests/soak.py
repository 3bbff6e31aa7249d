"""Takes numbers in eight processes, two of which fork amid it, and prints them: python soak.py COUNT URL..."""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

import hapax

WORKERS = 8
count, servers = int(sys.argv[1]), sys.argv[2:]
client = hapax.Client(*servers, deadline=120, max_step=2000)
tag = client.tag("orders")


def write(numbers: list[int]) -> None:
    os.write(1, "".join(f"{n}\n" for n in numbers).encode())


def work(numbers: int, forks: bool) -> None:
    while numbers > 0:
        if forks and numbers < count // WORKERS // 2:
            forks = False
            pid = os.fork()
            if pid == 0:
                work(numbers // 2, False)
                os._exit(0)
            work(numbers - numbers // 2, False)
            if os.waitpid(pid, 0)[1]:
                sys.exit("a child failed")
            return
        n = min(numbers, 100)
        write([tag.next() for _ in range(n)])  # short enough to be written at once
        numbers -= n


write([tag.next()])  # the parent has some in hand
pids = []
for i in range(WORKERS):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work(count // WORKERS, i % 4 == 0)
            client.close()
            status = 0
        finally:
            os._exit(status)
    pids.append(pid)
failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)
write([tag.next()])
client.close()
sys.exit(failed)
