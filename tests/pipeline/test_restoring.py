"""Rows of an archive become entries again: nothing is lost, and all bear where they came from."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given, strategies as st

from agentbus.core import envelope
from agentbus.pipeline.replays import restore
from agentbus.pipeline.rows.decoding import batch

ORIGIN = "q:mail 5-0"


def packed(words: list[str | bytes]) -> list[bytes]:
    return [word.encode() if isinstance(word, str) else word for word in words]


def read(words: list[str | bytes]) -> tuple[object, dict[str, object]]:
    return envelope.decode(packed(words))


def task(payload: str | None = '{"n":1}', keep: bool = False, **fields: str) -> tuple:
    return restore.task(ORIGIN, payload, fields, keep_replies=keep)


def test_a_plain_task_gets_its_payload_and_the_mark():
    _, words = task()

    assert words[:2] == ["payload", '{"n":1}']
    assert read(words) == ({"n": 1}, {"replayed_from": ORIGIN})


def test_the_envelope_stays_but_for_who_is_told():
    meta = {"correlation_id": "c", "key": "k", "reply_to": "r", "webhook": "https://a.example"}
    _, words = task(meta=json.dumps(meta))

    assert read(words)[1] == {"correlation_id": "c", "key": "k", "replayed_from": ORIGIN}


def test_who_is_told_stays_if_it_is_wished():
    _, words = task(keep=True, meta='{"reply_to":"r"}')

    assert read(words)[1]["reply_to"] == "r"


def test_an_ordering_key_is_found():
    key, words = task(meta='{"ordering_key":"user-7"}')

    assert key == "user-7"
    assert read(words)[1]["ordering_key"] == "user-7"


def test_the_id_of_a_task_that_was_delayed_is_left_out():
    _, words = task(id="5-0@mail")

    assert "id" not in words


def test_the_mark_of_an_earlier_replay_gives_way():
    _, words = task(meta='{"replayed_from":"q:older 1-1"}')

    assert read(words)[1] == {"replayed_from": ORIGIN}


@pytest.mark.parametrize("meta", ["no json", "[1]", "7"])
def test_an_envelope_that_cannot_be_read_stays_as_it_was(meta):
    _, words = task(meta=meta)

    assert words == ["payload", '{"n":1}', "meta", meta, "replayed_from", ORIGIN]


def test_bytes_that_are_no_text_are_put_back_as_bytes():
    _, words = task(None, **{"payload:base64": base64.b64encode(b"\xff\x00").decode(), "x": "y"})

    assert words[:2] == ["payload", b"\xff\x00"]
    assert words[-2:] == ["x", "y"]


@pytest.mark.parametrize("fields", [{}, {"meta": '{"source":"billing"}'}, {"meta": "no json"}])
def test_a_task_keeps_its_publisher(fields):
    _, words = restore.task(ORIGIN, "1", fields, agent="ada", keep_replies=False)

    assert dict(zip(words[::2], words[1::2], strict=True))[b"agent_id"] == "ada"


def test_a_source_is_not_made_a_publisher():
    fields = {"meta": '{"source":"billing"}'}
    _, words = restore.task(ORIGIN, "1", fields, agent="billing", keep_replies=False)

    assert b"agent_id" not in words


def test_another_programs_field_is_put_back():
    _, words = task(trace="t", **{"raw:base64": base64.b64encode(b"\xfe").decode()})

    assert words[4:] == ["trace", "t", "raw", b"\xfe"]


def test_a_field_that_only_looks_encoded_stays_as_it_is():
    _, words = task(**{"x:base64": "no base64!"})

    assert words[4:] == ["x:base64", "no base64!"]


def test_a_field_that_was_there_twice_is_so_again():
    _, words = task(**{"x": "1", "x:2": "2", "y:2": "3"})

    assert words[4:] == ["x", "1", "x", "2", "y:2", "3"]


def test_a_dead_letter_of_another_programs_task_becomes_a_task_of_its_fields():
    own = dict.fromkeys(("group", "priority", "original_id", "task_id", "attempts"), "1")
    own |= {"error": "boom", "traceback": "", "failed_at": "2026-11-20T08:00:00Z"}
    _, words = restore.letter(ORIGIN, None, {"to": "ada", **own}, keep_replies=False)

    assert read(words) == ({"to": "ada"}, {"replayed_from": ORIGIN})


def test_of_a_dead_letter_only_the_task_is_left():
    fields = {"error": "boom", "priority": "high", "meta": '{"topic":"t"}', "extra": "e"}
    _, words = restore.letter(ORIGIN, "1", fields, keep_replies=False)

    assert read(words) == (1, {"topic": "t", "replayed_from": ORIGIN})
    assert words[4:] == ["extra", "e"]


def test_a_huge_entry_keeps_its_other_fields_as_one():
    fields = {f"f{n}": "v" for n in range(4000)}
    _, words = task(**fields)

    assert len(words) == 6
    assert json.loads(words[5]) == fields


def test_a_message_is_a_message_again():
    words = restore.message("ch:main 7-0", "ada", "build", None, '"green"', {"x": "y"})

    assert words == [
        *("agent_id", "ada", "message", "green", "topic", "build", "x", "y"),
        *("replayed_from", "ch:main 7-0"),
    ]


def test_an_event_of_the_bus_is_no_event_again():
    words = restore.message(
        "ch:main 7-0", "ada", "coordination", "satisfied", '"done"', {"flag": "f", "token": "3"}
    )

    assert "event" not in words
    assert words[words.index("replayed_event") + 1] == "satisfied"
    assert words[words.index("flag") + 1] == "f"


def test_a_message_becomes_a_task():
    words = restore.message_as_task("ch:main 7-0", "ada", "build", None, '"green"', {})

    assert read(words) == (
        {"agent": "ada", "topic": "build", "message": "green"},
        {"replayed_from": "ch:main 7-0"},
    )


def test_an_event_becomes_a_task_with_all_that_it_says():
    words = restore.message_as_task(
        "ch:main 7-0", "ada", "coordination", "satisfied", '"done"', {"flag": "f"}
    )

    assert read(words)[0]["event"] == "satisfied"
    assert read(words)[0]["fields"] == {"flag": "f"}


fields = st.dictionaries(
    st.sampled_from([b"x", b"y", b"to", b"z:2", b"agent_id"]), st.binary(max_size=6), max_size=4
)
metas = st.none() | st.sampled_from([b'{"topic":"t"}', b"{}", b"\xff", b"[]", b"{"])


@given(st.binary(max_size=8), metas, fields)
def test_what_is_archived_and_replayed_is_the_same_entry_with_a_mark(payload, meta, rest):
    entry = [b"payload", payload, *([] if meta is None else [b"meta", meta])]
    entry += [word for pair in rest.items() for word in pair]
    row = batch([("q:mail", [(b"5-0", entry)])]).to_pylist()[0]

    found = dict(row["fields"])
    words = packed(
        restore.task(ORIGIN, row["payload"], found, agent=row["agent"], keep_replies=False)[1]
    )

    named = dict(zip(words[::2], words[1::2], strict=True))
    assert named.pop(b"payload") == payload
    mark = named.pop(b"replayed_from", None)
    told = named.pop(b"meta")
    if mark is None:
        assert json.loads(told) == {**json.loads(meta or b"{}"), "replayed_from": ORIGIN}
    else:
        assert (mark.decode(), told) == (ORIGIN, meta)
    assert named == rest
