"""A relay or a consumer as a process of its own, to be killed."""

from __future__ import annotations

import os

import sqlalchemy as sa

import agentbus
from agentbus.events import Consumer, Ledger, Relay, register
from tests.events.shop import STREAM, act


def handle(event, session) -> None:
    """Act on every event but one, which always fails."""
    act(event, session)
    if event.event_uuid == "poison":
        raise ValueError("poison")


def main(role: str, database: str, url: str, project: str) -> None:
    """Run a role once, on what is there."""
    ledger = Ledger(sa.create_engine(database))
    with agentbus.connect(url, project=project, agent="killed") as bus:
        if role == "relay":
            Relay(ledger, bus).run_once()
            return
        batch = role == "batch"
        handler = (
            (lambda events, session: [handle(each, session) for each in events])
            if batch
            else handle
        )
        found = register(handler, STREAM, name="welcome", on_error="park", attempts=2, batch=batch)
        mine = Consumer(found, ledger, bus, at_once=3)
        for _ in range(3):
            mine.run_once()


def apart(said: str, kill: str | None, *words: str) -> None:
    """Run a role in this process, which is to be killed at a step; what goes wrong goes into a file."""
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    os.environ.pop("AGENTBUS_TEST_KILL", None)
    if kill is not None:
        os.environ["AGENTBUS_TEST_KILL"] = kill
    main(*words)
