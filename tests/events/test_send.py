"""Sending: an event is there if, and only if, the change it tells of was committed."""

from __future__ import annotations

import uuid

import pydantic
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from agentbus.errors import ConfigError, InvalidName, InvalidPayload, UsageError
from agentbus.events import EventSchemas, Guarantee, Ledger, send_event
from agentbus.events.send import new_uuid


class UserCreated(pydantic.BaseModel):
    user_id: int
    name: str = "nobody"


def rows(ledger: Ledger) -> list[sa.Row]:
    outbox = ledger.tables.outbox
    with ledger.engine.connect() as connection:
        return list(connection.execute(sa.select(outbox).order_by(outbox.c.id)))


def test_an_event_is_sent_by_the_callers_commit(ledger):
    with Session(ledger.engine) as session:
        found = send_event(session, "users", "UserCreated", {"user_id": 1}, metadata={"trace": "x"})
        assert rows(ledger) == []
        session.commit()

    (row,) = rows(ledger)
    assert (row.stream, row.event_type, row.event_uuid) == ("users", "UserCreated", found)
    assert (row.payload, row.metadata) == ('{"user_id":1}', '{"trace":"x"}')
    assert abs(row.created_ms - ledger.now()) < 60_000
    assert row.position_ms is None


def test_an_event_that_is_rolled_back_never_was(ledger):
    with Session(ledger.engine) as session:
        send_event(session, "users", "UserCreated", {})
        session.rollback()

    assert rows(ledger) == []


def test_a_connection_or_a_scoped_session_will_do(ledger):
    with ledger.engine.begin() as connection:
        send_event(connection, "users", "A", {})
    scoped = scoped_session(sessionmaker(ledger.engine))
    send_event(scoped, "users", "B", {})
    scoped.commit()
    scoped.remove()

    assert [row.event_type for row in rows(ledger)] == ["A", "B"]


def test_at_least_once_is_committed_at_once(ledger):
    with Session(ledger.engine) as session:
        send_event(session, "users", "A", {}, guarantee=Guarantee.AT_LEAST_ONCE)
        session.rollback()

    assert len(rows(ledger)) == 1


def test_at_most_once_is_refused_with_the_reason(ledger):
    with Session(ledger.engine) as session, pytest.raises(UsageError, match="outbox keeps"):
        send_event(session, "users", "A", {}, guarantee=Guarantee.AT_MOST_ONCE)


def test_an_event_with_a_uuid_of_the_callers_is_sent_once(ledger):
    with Session(ledger.engine) as session:
        send_event(session, "users", "A", {}, event_uuid="order-7")
        session.commit()
        with pytest.raises(sa.exc.IntegrityError):
            send_event(session, "users", "A", {}, event_uuid="order-7")


def test_the_ledger_says_which_tables(engine):
    ledger = Ledger(engine, prefix="other_")
    ledger.create()
    with engine.begin() as connection:
        send_event(connection, "users", "A", {}, ledger=ledger)

    assert len(rows(ledger)) == 1


def deep(levels: int) -> dict:
    found: dict = {}
    for _ in range(levels):
        found = {"a": found}
    return found


@pytest.mark.parametrize(
    "payload",
    [
        {"a": "\0"},
        {"a\0": 1},
        {"a": "\ud800"},
        {"a": float("nan")},
        {"a": [float("inf")]},
        {1: 2},
        {"a": "x" * (256 * 1024)},
        {"a": object()},
        {"a": b"bytes"},
        deep(300),
        ["a"],
        "text",
        None,
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_what_a_later_sink_would_refuse_is_refused_here(ledger, payload):
    with Session(ledger.engine) as session:
        with pytest.raises(InvalidPayload):
            send_event(session, "users", "A", payload)
        with pytest.raises(InvalidPayload, match="metadata"):
            send_event(session, "users", "A", {}, metadata=payload if payload is not None else 1)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 257])
def test_names_keep_the_rules_for_names(ledger, name):
    with Session(ledger.engine) as session:
        with pytest.raises(InvalidName):
            send_event(session, name, "A", {})
        with pytest.raises(InvalidName):
            send_event(session, "users", name, {})


JSON_SCHEMA = {
    "type": "object",
    "properties": {"user_id": {"type": "integer"}},
    "required": ["user_id"],
}


@pytest.mark.parametrize("schema", [UserCreated, JSON_SCHEMA], ids=["pydantic", "JSON Schema"])
def test_a_payload_must_fit_its_schema(ledger, schema):
    schemas = EventSchemas()
    schemas.register("users", "UserCreated", schema)
    with Session(ledger.engine) as session:
        send_event(session, "users", "UserCreated", {"user_id": 1}, schemas=schemas)
        with pytest.raises(InvalidPayload, match="user_id") as refusal:
            send_event(session, "users", "UserCreated", {"user_id": "hush"}, schemas=schemas)
        assert "hush" not in str(refusal.value)
        with pytest.raises(InvalidPayload, match="'Other'"):
            send_event(session, "users", "Other", {}, schemas=schemas)
        send_event(session, "elsewhere", "Other", {}, schemas=schemas)


def test_a_pydantic_model_is_sent_as_its_fields(ledger):
    with ledger.engine.begin() as connection:
        send_event(connection, "users", "UserCreated", UserCreated(user_id=3))

    assert rows(ledger)[0].payload == '{"user_id":3,"name":"nobody"}'


@pytest.mark.parametrize(
    "schema",
    [
        *({"type": "nothing"}, int, "text", None),
        *({"$schema": True}, {"$schema": []}, {"$schema": "http://[x"}),
    ],
)
def test_what_is_no_schema_is_refused(schema):
    with pytest.raises(ConfigError, match="schema"):
        EventSchemas().register("users", "A", schema)


def test_postgresql_is_notified_by_the_commit_alone(postgres_database, engines):
    ledger = Ledger(engines(postgres_database))
    ledger.create()
    with ledger.engine.connect() as listening:
        raw = listening.connection.driver_connection
        raw.execute(f"LISTEN {ledger.tables.channel}")
        raw.commit()
        raw.autocommit = True
        with Session(ledger.engine) as session:
            send_event(session, "users", "A", {})
            session.rollback()
            send_event(session, "users", "A", {})
            send_event(session, "users", "A", {})
            session.commit()

        told = list(raw.notifies(timeout=60, stop_after=1))
        raw.autocommit = False

    assert [notice.payload for notice in told] == [""]


def test_uuids_are_made_in_the_order_of_time(monkeypatch):
    found = []
    for at in (1_700_000_000_000, 1_700_000_000_001, 1_900_000_000_000):
        monkeypatch.setattr("time.time_ns", lambda at=at: at * 1_000_000)
        found.append(new_uuid())

    assert found == sorted(found)
    assert [uuid.UUID(one).version for one in found] == [7, 7, 7]
    assert int(found[0].replace("-", "")[:12], 16) == 1_700_000_000_000


def test_uuids_of_one_moment_differ(monkeypatch):
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_000_000_000)

    found = {new_uuid() for _ in range(1000)}

    assert len(found) == 1000
    assert {uuid.UUID(one).variant for one in found} == {uuid.RFC_4122}


@pytest.mark.parametrize("elsewhere", ["#/nowhere", "http://127.0.0.1:1/schema.json"])
def test_a_schema_that_refers_to_what_it_does_not_hold_fetches_nothing(elsewhere, monkeypatch):
    asked = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *args, **_options: asked.append(args))
    schemas = EventSchemas()
    schemas.register("users", "A", {"$ref": elsewhere})

    with pytest.raises(ConfigError, match="cannot be resolved"):
        schemas.check("users", "A", {})

    assert asked == []
