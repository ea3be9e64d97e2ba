"""Ledgers whose rows somebody forged, and command lines of every verb that reads them."""

from __future__ import annotations

import pathlib
import sqlite3
from typing import Any

from hypothesis import strategies as st
from sqlalchemy.orm import Session

import agentbus
from agentbus.events import Consumer, Relay, open_ledger, register, register_consumer, send_event
from tests.forging.values import blobs, json_like, numbers, texts

MODULE = """
from agentbus.events import consumer


@consumer("orders", name="welcome", on_error="park", attempts=1)
def welcome(event, session):
    if event.payload.get("poison"):
        raise ValueError("poison")
"""
LINES = [
    *("outbox status", "outbox status --json", "outbox relay --once", "outbox relay --once --json"),
    *("outbox init", "events status", "events status --json", "events parked list --json"),
    *("events parked list", "events parked show 1", "events parked show 1 --json", "health"),
    *("events parked retry 1 --json", "events parked drop 1", "events forget orders welcome"),
    *("events register orders other --json", "events register orders late --past", "health --json"),
    *("events skip orders welcome --to 0-0", "events skip orders welcome --to 9-9 --json"),
    *('events send orders Placed {{"a":1}}', "consume forgedconsumers --once", "doctor"),
    *(
        "consume forgedconsumers --once --json",
        "metrics --json",
        "events forget orders welcome --force",
    ),
]
TABLES = ("outbox", "processed", "lease", "attempts", "parked")


class Forged:
    """Statements on the tables of a ledger, with the values of their parameters."""

    def __init__(self, statements: list[tuple[str, tuple[Any, ...]]]) -> None:
        self.statements = statements

    def __repr__(self) -> str:
        return f"Forged({self.statements!r:.500})"


def sound(place: pathlib.Path, bus: agentbus.Bus) -> None:
    """Make a ledger with rows in every table."""
    database = f"sqlite:///{place}"
    ledger = open_ledger(database, make=True)
    ledger.create()
    welcome = register(_refuse, "orders", name="welcome", on_error="park", attempts=1)
    reading, relay = Consumer(welcome, ledger, bus), Relay(ledger, bus)
    reading.run_once()
    for number in range(3):
        with Session(ledger.engine) as session:
            poison = {"poison": True} if number == 1 else {}
            send_event(session, "orders", "Placed", {"n": number, **poison})
            session.commit()
    # What it published is removed once its consumers have passed it.
    register_consumer(ledger, "orders", "later")
    relay.run_once()
    reading.run_once()
    reading.close()
    relay.close()
    with Session(ledger.engine) as session:
        send_event(session, "orders", "Placed", {"n": 9}, metadata={"by": "bob"})
        session.commit()
    ledger.engine.dispose()


def _refuse(event: Any, _session: Any) -> None:
    if event.payload.get("poison"):
        raise ValueError("poison")


def rows(place: pathlib.Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each table."""
    with sqlite3.connect(place) as connection:
        connection.row_factory = sqlite3.Row
        found = {
            table: [dict(row) for row in connection.execute(f"SELECT * FROM agentbus_{table}")]
            for table in TABLES
        }
    connection.close()
    return found


def forgeries(held: dict[str, list[dict[str, Any]]]) -> st.SearchStrategy[list[Forged]]:
    """Return one to three forgeries of rows like those that are there."""
    there = {table: found for table, found in held.items() if found}
    return st.lists(_one(there), min_size=1, max_size=3)


@st.composite
def _one(draw: st.DrawFn, held: dict[str, list[dict[str, Any]]]) -> Forged:
    table = draw(st.sampled_from(sorted(held)))
    row = draw(st.sampled_from(held[table]))
    columns = sorted(row)
    how = draw(st.sampled_from(["cell", "cell", "cell", "row", "gone", "table"]))
    if how == "gone":
        return Forged([(f"DELETE FROM agentbus_{table}", ())])
    if how == "table" and draw(st.integers(0, 4)) == 0:
        return Forged([(f"DROP TABLE agentbus_{table}", ())])
    if how == "cell":
        column = draw(st.sampled_from(columns))
        value = draw(_cell(row[column]))
        return Forged([(f"UPDATE OR REPLACE agentbus_{table} SET {column} = ?", (value,))])
    made = {name: draw(_cell(row[name])) if draw(st.booleans()) else row[name] for name in columns}
    marks = ", ".join("?" * len(columns))
    words = f"INSERT OR REPLACE INTO agentbus_{table} ({', '.join(columns)}) VALUES ({marks})"
    return Forged([(words, tuple(made.values()))])


def _cell(sound_one: Any) -> st.SearchStrategy[Any]:
    whole = st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), 10**15, 10**18])
    other = st.one_of(
        st.none(), whole, st.sampled_from([1.5, float("inf"), 1e300]), _texts, blobs, numbers
    )
    if isinstance(sound_one, str) and sound_one[:1] in "{[":
        return other | json_like({"n": 1}).map(repr)
    return other


# SQLite takes no lone surrogates.
_texts = texts.map(lambda text: text.encode("utf-8", "replace").decode())


def forge(place: pathlib.Path, forged: list[Forged]) -> None:
    """Run the statements on a ledger's file."""
    connection = sqlite3.connect(place)
    for one in forged:
        for words, values in one.statements:
            try:
                connection.execute(words, values)
            except (sqlite3.Error, OverflowError):
                # A constraint of the table, say.
                continue
    connection.commit()
    connection.close()
