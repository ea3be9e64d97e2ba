"""A shop in Django, whose orders are confirmed by tasks."""
