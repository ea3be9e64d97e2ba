"""Typed columns: what the fields of an entry say, and null where they say nothing sound."""

from __future__ import annotations

import datetime
import json

import pyarrow as pa
import pytest

from agentbus.pipeline.rows import schema
from agentbus.pipeline.rows.typed_columns import BUCKETS, COMPACTED, COUNTERS, TYPED, typed

UTC = datetime.UTC


def frame(spark, kind, *entries):
    """A frame of rows of one kind: each is made of the columns that are given, the rest are null."""
    rows = []
    for entry in entries:
        fields = entry.get("fields")
        row = dict.fromkeys(schema.COLUMNS) | entry | {"kind": kind, "version": schema.VERSION}
        row["fields"] = None if fields is None else list(fields.items())
        rows.append(row)
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema.ARROW))


def several(spark, kind, *entries):
    return [row.asDict() for row in typed(frame(spark, kind, *entries), kind).collect()]


def first(spark, kind, **entry):
    return several(spark, kind, entry)[0]


@pytest.mark.parametrize("kind", ["channel", "queue"])
def test_the_bytes_of_a_payload_are_those_of_its_json(spark, kind):
    texts = ["hi", "", 'say "hi"', "a\\b\n\x01é", "é" * 5, "\U0001f600"]
    payloads = [*map(json.dumps, texts), '"é"', '{"a":"b"}', "", None]

    found = several(spark, kind, *({"payload": payload} for payload in payloads))

    wanted = [None if one is None else len(one.encode()) for one in payloads]
    assert [row["bytes"] for row in found] == wanted


def test_no_typed_column_takes_the_name_of_a_column_that_is_there():
    names = {name for columns in TYPED.values() for name in columns}

    assert names.isdisjoint({*schema.COLUMNS, "date", COMPACTED})
    assert set(TYPED) == set(schema.KINDS)


def test_a_column_has_one_type_in_all_kinds(spark):
    types = {}
    for kind in schema.KINDS:
        for field in typed(frame(spark, kind, {}), kind).schema:
            types.setdefault(field.name, set()).add(field.dataType.simpleString())

    assert {name: found for name, found in types.items() if len(found) > 1} == {}


def test_the_metrics_of_a_worker_are_numbers_moments_and_lists(spark):
    fields = {
        "group": "default",
        "worker": "host:7:a",
        "from": "1763600000123",
        "to": "1763600001000",
        **{event: str(at) for at, event in enumerate(COUNTERS, 1)},
        "busy_ms": "12.345",
        "waited_ms": "0.5",
        "ran": "[0,2,1]",
        "waited": "[]",
    }

    row = first(spark, schema.METRICS, fields=fields)

    assert (row["group_"], row["worker"]) == ("default", "host:7:a")
    assert row["began"].replace(tzinfo=UTC).timestamp() == pytest.approx(1763600000.123)
    assert row["ended"].replace(tzinfo=UTC).timestamp() == 1763600001
    assert [row[column] for column in COUNTERS.values()] == list(range(1, len(COUNTERS) + 1))
    assert (row["busy_ms"], row["waited_ms"]) == (12.345, 0.5)
    assert (row["ran_counts"], row["waited_counts"]) == ([0, 2, 1], [])


def test_a_dead_letter_tells_its_task_and_its_cause(spark):
    fields = {
        "group": "g",
        "priority": "high",
        "original_id": "5-0",
        "task_id": "5-0@mail:high",
        "attempts": "3",
        "error": "ConnectionError: refused: twice\nand more",
        "failed_at": "2026-11-20T23:59:59.250Z",
    }

    row = first(spark, schema.DEAD_LETTER, fields=fields, payload='"ü"')

    assert row["failed_at"].replace(tzinfo=UTC).isoformat() == "2026-11-20T23:59:59.250000+00:00"
    assert {name: row[name] for name in ("attempts", "error_kind", "priority", "bytes")} == {
        "attempts": 3,
        "error_kind": "ConnectionError",
        "priority": "high",
        "bytes": 4,
    }
    assert (row["group_"], row["original_id"], row["task_id"]) == ("g", "5-0", "5-0@mail:high")


def test_a_cause_is_a_class_or_the_first_words(spark):
    causes = {
        "it timed out after 3 s": "it timed out after 3 s",
        "ValueError:": "ValueError",
        ": odd": None,
        "": None,
        None: None,
        "x" * 300: "x" * 80,
    }

    rows = several(spark, schema.DEAD_LETTER, *({"fields": {"error": text}} for text in causes))

    assert [row["error_kind"] for row in rows] == list(causes.values())


def test_a_task_tells_its_priority_and_its_envelope(spark):
    meta = {
        "key": "k",
        "ordering_key": "o:1",
        "causation_id": "c",
        "replayed_from": "9-1",
        "created_at": 1763600000.125,
    }
    entries = [
        {"stream": "q:mail:high", "fields": {"meta": json.dumps(meta)}, "payload": "{}"},
        {"stream": "q:ma%3Ail", "fields": {}},
    ]

    high, plain = typed(frame(spark, schema.QUEUE, *entries), schema.QUEUE).collect()

    assert (high.priority, plain.priority) == ("high", "normal")
    assert (high.task_key, high.ordering_key, high.causation_id) == ("k", "o:1", "c")
    assert (high.replayed_from, high.bytes) == ("9-1", 2)
    assert high.created_at.replace(tzinfo=UTC).timestamp() == 1763600000.125
    assert (plain.task_key, plain.created_at, plain.bytes) == (None, None, None)


def test_an_event_of_a_flag_tells_flag_token_and_loser(spark):
    fields = {"flag": "built", "token": "7", "note": "done", "forced_from": "b"}

    row = first(spark, schema.CHANNEL, fields=fields, payload='"x"')

    assert [row[name] for name in TYPED[schema.CHANNEL]] == ["built", "done", "7", "b", 3]


def test_an_event_of_a_stream_tells_its_row_in_the_outbox(spark):
    metadata = '{"__creation_timestamp_ms__":1795183200120,"causation_id":"c"}'
    fields = {"event_uuid": "u", "outbox_id": "7", "metadata": metadata}
    found, other = several(
        spark,
        schema.EVENT,
        {"fields": fields, "payload": "{}"},
        {"fields": {"outbox_id": "x", "metadata": '{"__creation_timestamp_ms__":"soon"}'}},
    )

    assert (found["event_uuid"], found["outbox_id"], found["bytes"]) == ("u", 7, 2)
    assert found["causation_id"] == "c"
    created = datetime.datetime(2026, 11, 20, 14, 0, 0, 120000, UTC)
    assert found["created_at"].replace(tzinfo=UTC) == created
    assert (other["event_uuid"], other["outbox_id"], other["created_at"]) == (None, None, None)


def test_values_of_other_programs_are_null(spark):
    values = [
        *("", "x", "-1", "9" * 30, "NaN", "Infinity", "-0.001", "1e999", "now", "[1", "{}", "²"),
    ]
    names = ("from", "to", *COUNTERS, "busy_ms", "waited_ms", "ran", "waited")
    entries = [{"fields": dict.fromkeys(names, value)} for value in [*values, "1.5"]]

    *rows, fraction = several(spark, schema.METRICS, *entries)

    columns = set(TYPED[schema.METRICS]) - {"group_", "worker"}
    for value, row in zip(values, rows, strict=True):
        assert (value, {name for name in columns if row[name] is not None}) == (value, set())
    assert {name for name in columns if fraction[name] is not None} == {"busy_ms", "waited_ms"}


def test_a_list_that_holds_anything_but_counts_is_null(spark):
    lists = [
        "[1,-2]",
        "[1.5]",
        '["1"]',
        "[null]",
        "[01]",
        "[[1]]",
        f"[{'9' * 16}]",
        "7",
        "[1,]",
        "[1]\n",
    ]

    rows = several(spark, schema.METRICS, *({"fields": {"ran": text}} for text in lists))

    assert [row["ran_counts"] for row in rows] == [None] * len(lists)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,  ", ":")])
def test_a_list_is_cut_after_the_last_bucket(spark, separators):
    row = first(spark, schema.METRICS, fields={"ran": json.dumps([1] * 40, separators=separators)})

    assert row["ran_counts"] == [1] * BUCKETS


def test_a_moment_that_is_none_is_null(spark):
    moments = ["now", "today", "epoch", "yesterday", "2026", "soon", "9" * 40, "2026-99-99"]

    rows = several(spark, schema.DEAD_LETTER, *({"fields": {"failed_at": m}} for m in moments))

    assert [row["failed_at"] for row in rows] == [None] * len(moments)


def test_a_malformed_envelope_is_null(spark):
    metas = ["", "[]", "7", "{", '{"key": null}', '{"created_at": "now"}']

    rows = several(
        spark, schema.QUEUE, *({"stream": "q:a", "fields": {"meta": meta}} for meta in metas)
    )

    for row in rows:
        assert [row[name] for name in TYPED[schema.QUEUE]] == ["normal", *[None] * 7]


@pytest.mark.parametrize("kind", schema.KINDS)
def test_a_row_of_nothing_but_null_has_typed_columns_of_null(spark, kind):
    row = first(spark, kind)

    assert [row[name] for name in TYPED[kind]] == [None] * len(TYPED[kind])


def test_a_column_that_compaction_wrote_is_kept(spark):
    raw = frame(spark, schema.METRICS, {"fields": {"dead": "5", "stale": "6"}})
    partly = raw.selectExpr("*", "cast(7 as bigint) as dead", "cast(null as bigint) as stale")

    row = typed(partly, schema.METRICS).first()

    assert (row.dead, row.stale) == (7, 6)


def test_fields_of_compacted_rows_are_not_read(spark, tmp_path):
    rows = typed(frame(spark, schema.METRICS, {"fields": {"dead": "5"}}), schema.METRICS)
    rows.write.parquet(str(tmp_path / "compacted"))
    compacted = spark.read.parquet(str(tmp_path / "compacted")).selectExpr(
        "*", f"true as {COMPACTED}"
    )

    counts = typed(compacted, schema.METRICS).select("dead", "stale")

    assert [tuple(row) for row in counts.collect()] == [(5, None)]
    # The plan names what its scan reads.
    plan = counts._jdf.queryExecution().executedPlan().toString()
    assert "ReadSchema: struct<dead:bigint,stale:bigint>" in plan
