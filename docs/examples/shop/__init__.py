"""A shop with orders, stock and mail, whose parts tell each other by events."""
