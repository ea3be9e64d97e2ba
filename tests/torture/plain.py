"""A plain connection to a server, as other programs have it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from agentbus.core.errors import BackendUnavailable, OutcomeUnknown


def plain_client(url: str, within: float = 2.0, **options: Any) -> redis.Redis:
    """Return a connection that shares nothing with the library; an answer may take `within` seconds."""
    return redis.Redis.from_url(url, protocol=2, driver_info=None, socket_timeout=within, **options)


@contextmanager
def library_errors(*, unsure: bool = False) -> Iterator[None]:
    """Raise the library's errors in place of redis-py's; `unsure`: an unanswered command may have run."""
    try:
        yield
    except redis.ResponseError as refused:
        raise BackendUnavailable(str(refused)) from refused
    except redis.RedisError as trouble:
        raise (OutcomeUnknown if unsure else BackendUnavailable)(str(trouble)) from trouble
