"""Numbers as defaults of columns, with SQLAlchemy 2.

    ids = hapax.sqlalchemy.Numbers(client)
    class Order(Base):
        id: Mapped[int] = mapped_column(BigInteger, primary_key=True, default=ids("orders"))

A statement that inserts many rows takes their numbers from memory; a number whose row is rolled
back is a gap. It works with asyncio engines, too: there, SQLAlchemy calls defaults in a greenlet,
which must not wait long, so let the client fetch ahead.
"""

from __future__ import annotations

from typing import Any, Callable

from . import Client


class Numbers:
    """Makes defaults. The client is connected at the first number, in the process that wants it."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __call__(self, tag: str) -> Callable[[Any], int]:
        numbers = self._client.tag(tag)  # refuses a wrong name where the table is defined

        def default(_context: Any) -> int:
            return numbers.next()

        default.__name__ = f"hapax_{tag}"
        return default
