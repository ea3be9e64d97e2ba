"""Two services that exchange events, each with a database of its own: their processes, to be killed."""

from __future__ import annotations

import os

import sqlalchemy as sa
from sqlalchemy.orm import Session

import agentbus
from agentbus.events import Consumer, Guarantee, Relay, open_ledger, register, send_event

STREAM = "exchange"
# Consumers with this guarantee act in a transaction of their own.
SURELY, AT_LEAST = "surely", "at-least"
LEASE = 1.0
TABLES = (
    "CREATE TABLE sent (number INTEGER PRIMARY KEY, uuid VARCHAR(40) NOT NULL)",
    "CREATE TABLE effects (consumer VARCHAR(40) NOT NULL, uuid VARCHAR(40) NOT NULL)",
)
_ACTED = sa.text("INSERT INTO effects (consumer, uuid) VALUES (:consumer, :uuid)")


def send(database: str, service: str, number: int) -> None:
    """Send events up to a number, each with a row about it; goes on behind what is committed."""
    ledger = open_ledger(database)
    with Session(ledger.engine) as session:
        first = session.execute(sa.text("SELECT coalesce(max(number), -1) FROM sent")).scalar_one()
    for each in range(first + 1, number):
        with Session(ledger.engine) as session:
            uuid = f"{service}-{each}"
            row = {"number": each, "uuid": uuid}
            session.execute(sa.text("INSERT INTO sent (number, uuid) VALUES (:number, :uuid)"), row)
            send_event(session, STREAM, "Sent", {"by": service}, event_uuid=uuid)
            session.commit()


def consume(database: str, url: str, project: str, service: str, name: str) -> None:
    """Act on the events of the other service, until killed."""
    ledger = open_ledger(database)

    def surely(events, session) -> None:
        for event in events:
            if event.payload["by"] != service:
                session.execute(_ACTED, {"consumer": name, "uuid": event.event_uuid})

    def at_least(event) -> None:
        if event.payload["by"] != service:
            with ledger.transaction() as connection:
                connection.execute(_ACTED, {"consumer": name, "uuid": event.event_uuid})

    if name == SURELY:
        declared = register(surely, STREAM, name=name, batch=True)
    else:
        declared = register(at_least, STREAM, name=name, guarantee=Guarantee.AT_LEAST_ONCE)
    with agentbus.connect(url, project=project, agent=service) as bus:
        Consumer(declared, ledger, bus, lease=LEASE).run()


def relay(database: str, url: str, project: str, service: str) -> None:
    """Publish the events of a service, until killed."""
    with agentbus.connect(url, project=project, agent=service) as bus:
        Relay(open_ledger(database), bus, lease=LEASE).run()


def apart(
    said: str, role: str, number: int, database: str, url: str, project: str, service: str
) -> None:
    """Run a role of a service in this process; what goes wrong goes into a file."""
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    os.environ["AGENTBUS_APP"] = service
    if role == "send":
        send(database, service, number)
        # The parent sees that nothing is left to send by this process's exit.
        return
    if role == "relay":
        relay(database, url, project, service)
    else:
        consume(database, url, project, service, role)
