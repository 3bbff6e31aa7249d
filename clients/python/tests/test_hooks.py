"""Eight processes insert rows into a real PostgreSQL: no number twice, and few requests.

Needs SQLAlchemy, Django, psycopg, and PostgreSQL's programs under /usr/lib/postgresql."""

from __future__ import annotations

import asyncio
import glob
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable

sys.path[:0] = [os.path.join(os.path.dirname(__file__), p) for p in ("", "..", "../examples")]

from play import TestServer

WORKERS = 8
ROWS = 100_000 if os.environ.get("HAPAX_TEST_SOAK") else 16_000
BINARY = os.environ.get("HAPAX", "hapax")


def as_postgres(*command: str) -> list[str]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return list(command)
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command]


class Postgres:
    """A server of its own, in a fresh directory."""

    def __init__(self) -> None:
        (programs,) = glob.glob("/usr/lib/postgresql/*/bin")[-1:]
        self.dir = tempfile.mkdtemp()
        if os.geteuid() == 0:
            shutil.chown(self.dir, "postgres", "postgres")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        data = os.path.join(self.dir, "data")
        subprocess.run(as_postgres(f"{programs}/initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"), check=True, stdout=subprocess.DEVNULL, cwd="/")
        self.process = subprocess.Popen(
            as_postgres(f"{programs}/postgres", "-D", data, "-p", str(self.port), "-h", "127.0.0.1", "-k", self.dir, "-c", "fsync=off"),
            stderr=subprocess.PIPE, text=True, cwd="/",
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "ready to accept connections" in line:
                break
        else:
            raise RuntimeError("PostgreSQL does not start")

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)  # SIGTERM waits for connections
        self.process.communicate()
        shutil.rmtree(self.dir, ignore_errors=True)


def in_workers(insert: Callable[[int], None]) -> None:
    """Forks workers as gunicorn does, of a parent that has used the client."""
    pids = []
    for _ in range(WORKERS):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                insert(ROWS // WORKERS)
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)
    failed = [pid for pid in pids if os.waitpid(pid, 0)[1] != 0]
    if failed:
        raise RuntimeError(f"{len(failed)} workers failed")


class Hooks(unittest.TestCase):
    postgres: Postgres

    @classmethod
    def setUpClass(cls) -> None:
        cls.postgres = Postgres()
        cls.addClassCleanup(cls.postgres.close)

    def setUp(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            f.write("{}")
            f.flush()
            self.server = TestServer(BINARY, f.name)
        self.addCleanup(self.server.close)

    def judge(self, rows: int) -> None:
        self.assertEqual(rows, ROWS + 1)  # a number twice is an error of the primary key
        requests = json.loads(self.server.ask("/requests"))
        counts = [r["body"]["count"] for r in requests if r["path"].endswith("/take")]
        growing = sum(count < 1000 for count in counts)
        self.assertLessEqual(growing, 8 * (WORKERS + 1), "the step does not grow")
        steady = [count for count in counts if count >= 1000]
        self.assertLessEqual(len(counts) - growing, ROWS / 500)
        self.assertTrue(steady, "no worker came to its steady state")

    def test_sqlalchemy(self) -> None:
        import sqlalchemy

        url = f"postgresql+psycopg://postgres@127.0.0.1:{self.postgres.port}/postgres"
        sys.argv[1:] = [url, self.server.servers[0]]
        example = importlib.import_module("sqlalchemy_orders")
        engine = sqlalchemy.create_engine(url)
        example.Base.metadata.create_all(engine)
        engine.dispose()
        example.insert(1)
        in_workers(example.insert)
        with engine.connect() as c:
            rows = c.execute(sqlalchemy.text("SELECT count(*) FROM orders")).scalar_one()
        engine.dispose()
        example.client.close()
        self.judge(rows)

    def test_django(self) -> None:
        os.environ.update(DATABASE_NAME="postgres", DATABASE_USER="postgres", DATABASE_HOST="127.0.0.1", DATABASE_PORT=str(self.postgres.port), HAPAX_URL=self.server.servers[0])
        example = importlib.import_module("django_orders")
        from django.db import connections

        example.create_table()
        example.insert(1)
        connections.close_all()
        in_workers(example.insert)
        self.judge(example.Order.objects.count())

        from django.db.migrations.writer import MigrationWriter
        from django.test import AsyncClient, Client

        written = MigrationWriter.serialize(example.Order._meta.get_field("id"))
        self.assertEqual(written[0], "hapax.django.HapaxField('orders', primary_key=True, serialize=False)")
        sync = int(Client().get("/order").content)

        async def main() -> list[int]:
            client = AsyncClient()
            return [int((await client.get("/aorder")).content) for _ in range(5)]

        numbers = [sync, *asyncio.run(main())]
        self.assertEqual(len(set(numbers)), 6)
        self.assertEqual(example.Order.objects.filter(pk__in=numbers).count(), 6)
        connections.close_all()
        example.client().close()


if __name__ == "__main__":
    unittest.main()
