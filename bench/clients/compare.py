"""Numbers a second in one process of Python, and the time that 99 of 100 calls stay below: with the
client, and one call a number. PYTHONPATH=clients/python python3 bench/clients/compare.py HTTP-URL REDIS-PORT"""

import http.client
import socket
import sys
import time
from urllib.parse import urlsplit

import hapax

SECONDS = 3.0
url, redis_port = sys.argv[1], int(sys.argv[2])


def measure(name, call, numbers=1):
    for _ in range(200):
        call()
    times, end = [], time.perf_counter() + SECONDS
    began = last = time.perf_counter()
    while last < end:
        call()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    times.sort()
    rate = len(times) * numbers / (last - began)
    print(f"| {name} | {rate:_.0f} | {times[len(times) * 99 // 100] * 1e6:.1f} µs |".replace("_", " "))


connection = http.client.HTTPConnection(urlsplit(url).netloc)


def over_http():
    connection.request("POST", "/v1/tags/bench/ids", b"")
    connection.getresponse().read()


redis = socket.create_connection(("127.0.0.1", redis_port))
redis.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def over_redis(pipeline):
    request = b"*2\r\n$4\r\nINCR\r\n$5\r\nbench\r\n" * pipeline

    def call():
        redis.sendall(request)
        got = 0
        while got < pipeline:
            got += redis.recv(65536).count(b"\n")

    return call


with hapax.Client(url) as client:
    tag = client.tag("bench")
    measure("the client, `next()`", tag.next)
    measure("the client, `take(100)`", lambda: tag.take(100), 100)
measure("HTTP, one call a number", over_http)
measure("Redis protocol, one call a number", over_redis(1))
measure("Redis protocol, pipelines of 100", over_redis(100), 100)
