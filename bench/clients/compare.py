"""What compare measures, in Python: compare.py HTTP-URL REDIS-PORT SECONDS."""

import socket
import sys
import time
from urllib.parse import urlsplit

import hapax

url, redis_port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])


def measure(name, call, numbers=1):
    end = time.perf_counter() + seconds / 4
    while time.perf_counter() < end:  # warm
        call()
    times = []
    began = last = time.perf_counter()
    end = began + seconds
    while last < end:
        call()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    times.sort()
    print(name, len(times) * numbers / (last - began), times[len(times) * 99 // 100] * 1e6)


def connected(port):
    s = socket.create_connection(("127.0.0.1", port))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def over_http(http, request):
    http.sendall(request)
    got = http.recv(65536)
    while b"\r\n\r\n" not in got:
        got += http.recv(65536)
    head, body = got.split(b"\r\n\r\n", 1)
    left = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]) - len(body)
    while left > 0:
        left -= len(http.recv(65536))


def over_redis(redis, request, replies):
    redis.sendall(request)
    while replies > 0:
        replies -= redis.recv(65536).count(b"\n")


with hapax.Client(url) as client:
    tag = client.tag("bench")
    measure("next", tag.next)
    measure("take", lambda: tag.take(100), 100)
http, redis = connected(urlsplit(url).port), connected(redis_port)
request = b"POST /v1/tags/bench/ids HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"
incr = b"*2\r\n$4\r\nINCR\r\n$5\r\nbench\r\n"
measure("http", lambda: over_http(http, request))
measure("redis", lambda: over_redis(redis, incr, 1))
measure("pipeline", lambda: over_redis(redis, incr * 100, 100), 100)
