"""A plain connection to a server, as other programs have it."""

from __future__ import annotations

from typing import Any

import redis


def plain_client(url: str, within: float = 2.0, **options: Any) -> redis.Redis:
    """Return a connection that shares nothing with the library; an answer may take `within` seconds."""
    return redis.Redis.from_url(url, protocol=2, driver_info=None, socket_timeout=within, **options)
