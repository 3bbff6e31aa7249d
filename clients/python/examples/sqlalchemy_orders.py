"""Inserts rows whose numbers come from hapax: python sqlalchemy_orders.py DATABASE-URL HAPAX-URL [ROWS]"""

import sys

import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import hapax
from hapax.sqlalchemy import Numbers

database, server = sys.argv[1], sys.argv[2]
client = hapax.Client(server)
ids = Numbers(client)


class Base(DeclarativeBase):
    """All tables."""


class Order(Base):
    """An order, whose number is there before it is inserted."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(sqlalchemy.BigInteger, primary_key=True, default=ids("orders"))
    what: Mapped[str]


def insert(rows: int) -> None:
    """Inserts in batches."""
    engine = sqlalchemy.create_engine(database)
    with Session(engine) as session:
        for at in range(0, rows, 250):
            session.add_all(Order(what="tea") for _ in range(min(250, rows - at)))
            session.commit()
    engine.dispose()


if __name__ == "__main__":
    engine = sqlalchemy.create_engine(database)
    Base.metadata.create_all(engine)
    engine.dispose()
    insert(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    client.close()
