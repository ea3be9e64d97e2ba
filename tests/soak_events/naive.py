"""A relay and a consumer as one writes them at first: DATABASE URL PROJECT relay|CONSUMER.

They are here to be found out. The relay marks before it publishes, and reads by `id > last`; the consumer
looks before it acts, and remembers afterwards, each in a transaction of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from types import SimpleNamespace
from typing import Any

import redis
import sqlalchemy as sa
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy import exc

from agentbus.events import Ledger, open_ledger
from tests.soak_events.shop import METADATA, READS, act

_PAUSE = 0.02
# When the naive are killed by themselves, by the variable that kills others at a step: the second time
# that they have done the first half, and not the other.
WORST = "half-way:2"
MARKS = sa.Table(
    "soak_naive_marks",
    METADATA,
    sa.Column("role", sa.Text, primary_key=True),
    sa.Column("at", sa.Text, nullable=False),
)
SEEN = sa.Table(
    "soak_naive_seen",
    METADATA,
    sa.Column("consumer", sa.Text, primary_key=True),
    sa.Column("uuid", sa.Text, primary_key=True),
)


def main(database: str, url: str, project: str, role: str) -> None:
    """Relay or consume until killed."""
    ledger = open_ledger(database)
    server = redis.Redis.from_url(
        url, decode_responses=True, driver_info=None, retry=Retry(NoBackoff(), 0)
    )
    step = _relay if role == "relay" else _consume
    while True:
        try:
            busy = step(ledger, server, project, role)
        except (exc.DBAPIError, redis.RedisError):
            busy = False
        if busy:
            sys.stdout.write("acted\n")
            sys.stdout.flush()
        else:
            time.sleep(_PAUSE)


class _Death:
    """Kills this process at its worst moment, if that is wished."""

    def __init__(self) -> None:
        _, _, nth = os.environ.get("AGENTBUS_TEST_KILL", "").partition(":")
        self._left = int(nth or 0)

    def half_way(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


_DEATH = _Death()


def _mark(connection: sa.Connection, role: str) -> str:
    found = connection.execute(sa.select(MARKS.c.at).where(MARKS.c.role == role)).scalar()
    if found is None:
        connection.execute(sa.insert(MARKS).values(role=role, at="0"))
    return found or "0"


def _to(connection: sa.Connection, role: str, at: str) -> None:
    connection.execute(sa.update(MARKS).where(MARKS.c.role == role).values(at=at))


def _relay(ledger: Ledger, server: Any, project: str, role: str) -> bool:
    box = ledger.tables.outbox
    with ledger.engine.begin() as connection:
        last = int(_mark(connection, role))
        rows = connection.execute(
            sa.select(box).where(box.c.id > last).order_by(box.c.id).limit(20)
        ).all()
        if rows:
            _to(connection, role, str(rows[-1].id))
    if rows:
        _DEATH.half_way()
    for row in rows:
        server.xadd(f"{project}:naive:{row.stream}", {"uuid": row.event_uuid})
    return bool(rows)


def _consume(ledger: Ledger, server: Any, project: str, role: str) -> bool:
    with ledger.engine.begin() as connection:
        at = _mark(connection, role)
    found = server.xread({f"{project}:naive:{READS[role]}": at}, count=20)
    for entry_id, fields in found[0][1] if found else ():
        uuid = fields["uuid"]
        known = sa.select(SEEN).where(SEEN.c.consumer == role, SEEN.c.uuid == uuid)
        with ledger.engine.connect() as connection:
            if connection.execute(known).first():
                continue
        with ledger.engine.begin() as connection:
            act(role, SimpleNamespace(event_uuid=uuid), connection)
        _DEATH.half_way()
        with ledger.engine.begin() as connection:
            connection.execute(sa.insert(SEEN).values(consumer=role, uuid=uuid))
            _to(connection, role, entry_id)
    return bool(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
