"""Numbers from a hapax server, fetched in batches."""
import json
import os
import threading
import urllib.request


class Numbers:
    """Issues the numbers of one tag. Safe for threads, and for servers that fork."""

    def __init__(self, tag, count=100, server=None):
        server = server or os.environ.get("HAPAX_SERVER", "http://127.0.0.1:8080")
        self._url = f"{server}/v1/tags/{tag}/ids?count={count}"
        self._begin()
        # Parent and child would issue the same rest of a batch.
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self):
        self._lock, self._batch = threading.Lock(), []

    def next(self):
        with self._lock:
            if not self._batch:
                request = urllib.request.Request(self._url, method="POST")
                with urllib.request.urlopen(request, timeout=10) as answer:
                    self._batch = [int(n) for n in reversed(json.load(answer)["ids"])]
            return self._batch.pop()
