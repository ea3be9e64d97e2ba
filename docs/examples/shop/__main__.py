"""The shop's counter: `python -m shop open`, `order`, `restock` and `audit`."""

import argparse
import sys
import time

from sqlalchemy import inspect
from sqlalchemy.orm import Session

from agentbus.errors import AgentBusError
from shop import audit, orders
from shop.tables import Base, Shelf, database

PIECES = 50
PATIENCE = 60.0
GLANCE = 0.1


def opened(session: Session) -> None:
    """Make the shop's tables, and fill the shelves."""
    Base.metadata.create_all(session.connection())
    for item in orders.ITEMS:
        if session.get(Shelf, item) is None:
            session.add(Shelf(item=item, received=PIECES, left=PIECES))
    session.commit()
    print(f"open, with {PIECES} pieces each of {', '.join(orders.ITEMS)}")


def order(session: Session, number: int, item: str | None) -> None:
    """Place orders."""
    placed, taken_back = orders.rush(session, number, item)
    print(f"orders placed: {placed}, taken back: {taken_back}")


def restock(session: Session, item: str, pieces: int) -> None:
    """Put pieces on a shelf, also on one that is new."""
    shelf = session.get(Shelf, item, with_for_update=True)
    if shelf is None:
        shelf = Shelf(item=item, received=0, left=0)
        session.add(shelf)
    shelf.received += pieces
    shelf.left += pieces
    session.commit()
    print(f"{item}: {shelf.left} left")


def audited(session: Session, *, wait: bool) -> int:
    """Count, when nothing is under way any more if told to wait; returns the exit code."""
    until = time.monotonic() + PATIENCE
    before, found = None, audit.figures(session)
    # Twice the same: an event that is tried again is for a moment neither waiting nor handled.
    while wait and not (found.settled and found == before) and time.monotonic() < until:
        session.rollback()
        time.sleep(GLANCE)
        before, found = found, audit.figures(session)
    print(found)
    if wait and not found.settled:
        print("and it is not over: does a relay run, and a supervisor?")
        return 1
    print("they agree" if found.agree else "THEY DO NOT AGREE")
    return int(not found.agree)


def main() -> int:
    """Do one thing, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m shop", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("open", help="make the tables, fill the shelves")
    ordering = verbs.add_parser("order", help="place orders")
    ordering.add_argument("number", type=int, nargs="?", default=1)
    ordering.add_argument("--item", help="what is ordered (anything)")
    stocking = verbs.add_parser("restock", help="put pieces on a shelf")
    stocking.add_argument("item")
    stocking.add_argument("pieces", type=int)
    auditing = verbs.add_parser("audit", help="count orders, pieces and mails")
    auditing.add_argument("--wait", action="store_true", help="until nothing is under way")
    args = parser.parse_args()
    try:
        engine = database()
        if args.verb != "open" and not inspect(engine).has_table("orders"):
            print("shop: it is not open yet: python -m shop open", file=sys.stderr)
            return 1
        with Session(engine) as session:
            match args.verb:
                case "open":
                    opened(session)
                case "order":
                    order(session, args.number, args.item)
                case "restock":
                    restock(session, args.item, args.pieces)
                case _:
                    return audited(session, wait=args.wait)
    except AgentBusError as error:
        print(f"shop: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
