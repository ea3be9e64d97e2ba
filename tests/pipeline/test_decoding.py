"""Entries as rows: every field of every kind of entry has its place, and nothing is dropped."""

from __future__ import annotations

import base64
import datetime
import json

import pytest
from hypothesis import given, strategies as st

from agentbus.pipeline.rows import decoding, schema
from agentbus.pipeline.rows.streams import StreamGap


def row(stream: str, *flat: bytes, entry_id: bytes = b"1700000000123-7"):
    batch = decoding.batch([(stream, [[entry_id, list(flat)]])])
    assert batch.schema == schema.ARROW
    (found,) = batch.to_pylist()
    found["fields"] = dict(found["fields"])
    return found


def test_a_task_of_the_plain_kind_is_its_payload():
    found = row("q:mail", b"payload", b'{"to":"a"}')

    assert found["kind"] == "queue"
    assert found["stream"] == "q:mail"
    assert found["queue"] == "mail"
    assert found["payload"] == '{"to":"a"}'
    assert found["fields"] == {}
    assert found["id"] == "1700000000123-7"
    assert found["seq"] == 7
    assert found["time"] == datetime.datetime(2023, 11, 14, 22, 13, 20, 123000, datetime.UTC)
    assert found["version"] == schema.VERSION
    assert found["lost"] is None


def test_a_tasks_envelope_has_columns_and_is_kept_as_it_was_written():
    meta = b'{"correlation_id":"c1","topic":"t","source":"ada","headers":{"x":1}}'

    found = row("q:mail:high", b"payload", b"1", b"meta", meta)

    assert (found["correlation_id"], found["topic"], found["agent"]) == ("c1", "t", "ada")
    assert found["fields"] == {"meta": meta.decode()}


def test_the_agent_of_a_task_is_who_published_it_else_its_source():
    by, meta = (b"agent_id", b"ada"), (b"meta", b'{"source":"billing"}')

    for words, agent in ((by, "ada"), ((*meta, *by), "ada"), (meta, "billing"), ((), None)):
        found = row("q:mail", b"payload", b"1", *words)
        assert found["agent"] == agent
        assert "agent_id" not in found["fields"]


def test_a_page_of_tasks_of_several_publishers_has_the_agent_of_each():
    pages = [
        [b"%d-0" % n, [b"payload", b"1", b"agent_id", who]] for n, who in enumerate([b"a", b"b"])
    ]
    pages += [[b"7-0", [b"payload", b"1", b"agent_id", b"\xff"]]]

    for entries, agents in ((pages[:2], ["a", "b"]), (pages, ["a", "b", None])):
        batch = decoding.batch([("q:mail", entries)])
        assert batch.column("agent").to_pylist() == agents


@pytest.mark.parametrize("meta", [b"[1]", b"{", b'{"topic":5}', b"\xff"])
def test_an_envelope_that_is_none_is_kept_all_the_same(meta):
    found = row("q:mail", b"payload", b"1", b"meta", meta)

    assert found["topic"] is None
    assert list(found["fields"]) in (["meta"], ["meta:base64"])


def test_another_programs_task_is_an_object_of_its_fields():
    found = row("q:mail", b"task", b"build", b"type", b"ci")

    assert json.loads(found["payload"]) == {"task": "build", "type": "ci"}
    assert found["fields"] == {}


def test_bytes_that_are_no_text_are_kept():
    found = row("q:mail", b"payload", b"\xff\x00")

    assert found["payload"] is None
    assert base64.b64decode(found["fields"]["payload:base64"]) == b"\xff\x00"


def test_a_queues_name_is_decoded():
    assert row("q:a%3Ab%25", b"payload", b"1")["queue"] == "a:b%"


def test_a_message_is_text_in_json():
    found = row("ch:main", b"agent_id", b"ada", b"message", b'say "hi"', b"topic", b"build")

    assert found["kind"] == "channel"
    assert (found["agent"], found["topic"], found["event"]) == ("ada", "build", None)
    assert json.loads(found["payload"]) == 'say "hi"'
    assert found["queue"] is None


def test_a_message_to_one_agent_is_text_in_json_and_keeps_its_thread():
    words = (b"agent_id", b"ada", b"message", b"may I?", b"topic", b"merge")

    found = row("inbox:bob", *words, b"thread", b"1-1@bob", b"ask", b"1")

    assert (found["kind"], found["stream"]) == ("inbox", "inbox:bob")
    assert (found["agent"], found["topic"], found["queue"]) == ("ada", "merge", None)
    assert json.loads(found["payload"]) == "may I?"
    assert found["fields"] == {"thread": "1-1@bob", "ask": "1"}


def test_an_event_keeps_its_subject():
    found = row(
        "ch:main", b"agent_id", b"ada", b"message", b"x", b"event", b"announced", b"flag", b"f"
    )

    assert found["event"] == "announced"
    assert found["fields"] == {"flag": "f"}


def test_a_dead_letter_says_where_it_is_from():
    found = row(
        "dlq:bin:default", b"payload", b"1", b"queue", b"mail", b"attempts", b"4", b"error", b"boom"
    )

    assert found["kind"] == "dead_letter"
    assert found["queue"] == "mail"
    assert found["fields"] == {"attempts": "4", "error": "boom"}


def test_a_dead_letter_that_does_not_say_its_queue_has_that_of_its_stream():
    letters = [(b"1-0", [b"payload", b"1"]), (b"2-0", [b"payload", b"1", b"queue", b"mail"])]

    alone, together = (
        decoding.batch([("dlq:bin:default", page)]).column("queue").to_pylist()
        for page in (letters[:1], letters)
    )

    assert (alone, together) == (["bin"], ["bin", "mail"])


def test_metrics_keep_their_figures():
    found = row("metrics", b"kind", b"work", b"queue", b"mail", b"agent", b"w", b"processed", b"5")

    assert (found["kind"], found["event"], found["queue"]) == ("metrics", "work", "mail")
    assert found["fields"] == {"processed": "5"}


def test_an_event_of_a_stream_tells_its_type_and_its_stream():
    found = row(
        *("ev:shop%3Aorders", b"event_type", b"Placed", b"event_uuid", b"u", b"outbox_id", b"7"),
        *(b"payload", b'{"n": 1}', b"metadata", b'{"correlation_id":"c","topic":"other"}'),
    )

    assert (found["kind"], found["topic"], found["event"]) == ("event", "shop:orders", "Placed")
    assert (found["payload"], found["correlation_id"]) == ('{"n": 1}', "c")
    assert (found["queue"], found["agent"]) == (None, None)
    assert found["fields"] == {
        "event_uuid": "u",
        "outbox_id": "7",
        "metadata": '{"correlation_id":"c","topic":"other"}',
    }


@pytest.mark.parametrize(
    "metadata", [b'{"correlation_id":7}', b'"correlation_id"', b'{"correlation_id"', b"\xff"]
)
def test_metadata_that_name_no_correlation_are_kept_all_the_same(metadata):
    found = row("ev:orders", b"event_type", b"Placed", b"metadata", metadata)

    assert found["correlation_id"] is None
    assert found["fields"]


def test_a_field_that_was_given_twice_is_kept_twice():
    found = row("ch:main", b"message", b"a", b"x", b"1", b"x", b"2")

    assert found["fields"] == {"x": "1", "x:2": "2"}


def test_ids_may_have_any_64_bits():
    found = row("q:mail", b"payload", b"1", entry_id=b"18446744073709551615-18446744073709551615")

    assert found["id"] == "18446744073709551615-18446744073709551615"
    assert found["seq"] == 2**63 - 1
    assert found["time"].year == 9999


def test_a_gap_says_how_many_and_where():
    (found,) = decoding.gap(StreamGap("q:mail", 12, "5-1", "3-0", "6-0")).to_pylist()

    assert (found["kind"], found["stream"], found["lost"], found["id"]) == (
        *("gap", "q:mail", 12, "5-1"),
    )
    assert dict(found["fields"]) == {"after": "3-0", "before": "6-0"}


def test_entries_of_several_streams_stand_in_one_batch():
    batch = decoding.batch(
        [
            ("q:a", [[b"1-0", [b"payload", b"1"]]]),
            ("q:b", [[b"1-0", [b"payload", b"2"]], [b"2-0", [b"payload", b"3"]]]),
        ]
    )

    assert batch.column("stream").to_pylist() == ["q:a", "q:b", "q:b"]
    assert batch.column("queue").to_pylist() == ["a", "b", "b"]


WORDS = st.binary(max_size=12) | st.sampled_from(
    [
        b"event_type",
        b"metadata",
        b"payload",
        b"meta",
        b"queue",
        b"message",
        b"agent_id",
        b"topic",
        b"event",
        b"kind",
        b"id",
    ]
)


@given(
    stream=st.sampled_from(["ch:main", "q:mail", "dlq:mail:default", "metrics", "ev:orders"]),
    entries=st.lists(
        st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=5), min_size=1, max_size=5
    ),
)
def test_whatever_an_entry_holds_all_of_it_is_in_its_row(stream, entries):
    flats = [[part for pair in pairs for part in pair] for pairs in entries]

    batch = decoding.batch([(stream, [[b"5-%d" % n, flat] for n, flat in enumerate(flats)])])

    assert batch.schema == schema.ARROW
    batch.validate(full=True)
    for found, flat in zip(batch.to_pylist(), flats, strict=True):
        kept = [
            *(found[name] for name in ("agent", "topic", "event", "queue", "payload")),
            *(value for _, value in found["fields"]),
        ]
        told = "\n".join(filter(None, kept))
        for value in flat[1::2]:
            try:
                text = value.decode()
            except UnicodeDecodeError:
                text = base64.b64encode(value).decode()
                # In another program's task they are all in the fields.
            said = json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]
            assert any(form in told for form in (text, *said)) or text in json.dumps(kept)
