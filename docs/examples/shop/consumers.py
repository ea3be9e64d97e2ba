"""Who acts on the shop's events: the stock on orders, and the mail on what the stock says."""

from sqlalchemy.orm import Session

from agentbus.events import Guarantee, StreamEvent, consumer, send_event
from shop import post, tables
from shop.events import ORDERS, SOLD_OUT, STOCK, STOCK_RESERVED
from shop.tables import Order, Shelf


@consumer(ORDERS, name="stock", on_error="park", attempts=2)
def stock(event: StreamEvent, session: Session) -> None:
    """Take an order's pieces from the shelf, and tell what came of it, in one transaction."""
    item, pieces = event.payload["item"], event.payload["pieces"]
    # Locked, since pieces may come in at the same time.
    shelf = session.get(Shelf, item, with_for_update=True)
    if shelf is None:
        raise LookupError(f"there is no shelf for {item!r}")
    order = session.get_one(Order, event.payload["order"])
    if shelf.left >= pieces:
        shelf.left -= pieces
        order.state = tables.RESERVED
        send_event(session, STOCK, STOCK_RESERVED, event.payload)
    else:
        order.state = tables.SOLD_OUT
        send_event(session, STOCK, SOLD_OUT, event.payload)


@consumer(STOCK, name="mail", guarantee=Guarantee.AT_LEAST_ONCE)
def mail(event: StreamEvent) -> None:
    """Write to the customer. A crash may bring the same event again: the key makes it one mail."""
    order, item = event.payload["order"], event.payload["item"]
    if event.event_type == STOCK_RESERVED:
        text = f"Your order {order} ({event.payload['pieces']} of: {item}) is on its way."
    else:
        text = f"We are sorry: for your order {order} there were too few of: {item}."
    if not post.deliver(event.event_uuid, event.payload["customer"], text):
        print(f"mail {event.event_uuid} went out before, and is not sent again")
