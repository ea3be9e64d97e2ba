"""The shop's streams and the events in them: what producers and consumers agree on."""

from agentbus.events.schemas import REGISTERED

ORDERS, ORDER_PLACED = "shop:orders", "OrderPlaced"
STOCK, STOCK_RESERVED, SOLD_OUT = "shop:stock", "StockReserved", "SoldOut"

_ORDER = {
    "type": "object",
    "properties": {
        "order": {"type": "integer"},
        "customer": {"type": "string"},
        "item": {"type": "string", "minLength": 1},
        "pieces": {"type": "integer", "minimum": 1},
    },
    "required": ["order", "customer", "item", "pieces"],
}

# All three carry the same; what has no schema is refused on these streams.
REGISTERED.register(ORDERS, ORDER_PLACED, _ORDER)
REGISTERED.register(STOCK, STOCK_RESERVED, _ORDER)
REGISTERED.register(STOCK, SOLD_OUT, _ORDER)
