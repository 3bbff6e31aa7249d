"""SQLAlchemy: the primary key's default is a number from hapax."""
import os
import sys

from sqlalchemy import BigInteger, Column, Text, create_engine
from sqlalchemy.orm import Session, declarative_base

from hapax_ids import Numbers

engine = create_engine(os.environ["DATABASE_URL"].replace("postgres://", "postgresql+psycopg2://", 1))
orders = Numbers("sqlalchemy-orders")
Base = declarative_base()


class Order(Base):
    __tablename__ = "recipe_sqlalchemy"
    id = Column(BigInteger, primary_key=True, autoincrement=False, default=orders.next)
    what = Column(Text, nullable=False)


if sys.argv[1] == "create":
    Base.metadata.create_all(engine)
    sys.exit()

with Session(engine) as session:
    session.add(Order(what="before the fork"))
    session.commit()
engine.dispose()  # a connection is not shared, either
child = os.fork()
with Session(engine) as session:
    for n in range(int(sys.argv[1])):
        session.add(Order(what=f"order {n}"))
        session.commit()
    session.add_all(Order(what=f"bulk {n}") for n in range(int(sys.argv[1])))
    session.commit()
if child:
    sys.exit(os.waitpid(child, 0)[1] != 0)
