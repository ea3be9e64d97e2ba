"""The Spark sink `agentbus`: rows become tasks, messages and notes, and are written once."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

import agentbus
from agentbus.core.errors import BackendUnavailable, InvalidPayload, QueueFull, UsageError
from agentbus.core.settings import resolve
from agentbus.pipeline.sink import queue_slices, sink_writer
from agentbus.pipeline.sink.queue_slices import Spot
from agentbus.pipeline.sink.sink_options import sink
from agentbus.pipeline.source.data_source import AgentBusSource
from agentbus.pipeline.spark.errors import told
from tests.proxy import Proxy


@pytest.fixture(scope="module")
def registered(spark):
    spark.dataSource.register(AgentBusSource)
    return spark


@pytest.fixture
def bus(real_url, project):
    with agentbus.connect(real_url, project=project, agent="ada") as opened:
        yield opened


@pytest.fixture
def save(real_url, project):
    """Return a function that appends a frame, with options."""

    def _save(frame, **options):
        writes = frame.write.format("agentbus").options(url=real_url, project=project, **options)
        writes.mode("append").save()

    return _save


@pytest.fixture
def written(registered, real_url, project):
    """Return a function that writes rows as one of Spark's tasks does, without Spark."""
    settings = resolve({"url": real_url, "project": project, "agent": "ada"})

    def _written(ddl, rows, *, spot=None, **options):
        schema = StructType.fromDDL(ddl)
        asked = sink(options, schema, settings, overwrite=False)
        table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows])
        return sink_writer._write(
            asked, spot or Spot(asked.run, 0, 0, 60), iter(table.to_batches())
        )

    return _written


def entries(valkey, project, stream):
    return [
        dict(zip(fields[::2], fields[1::2], strict=True))
        for _, fields in valkey.ask("XRANGE", f"{project}:{stream}", "-", "+")
    ]


def payloads(valkey, project, stream="q:mail"):
    return [json.loads(entry[b"payload"]) for entry in entries(valkey, project, stream)]


# -- what rows become --


def test_rows_are_tasks_with_their_envelopes(registered, save, bus, valkey, project):
    rows = registered.range(1).select(
        F.struct(F.lit("ada").alias("to"), F.col("id").alias("n")).alias("payload"),
        F.lit("k").alias("key"),
        F.lit("high").alias("priority"),
        F.create_map(F.lit("lang"), F.lit("de")).alias("headers"),
        F.lit("c1").alias("correlation_id"),
        F.lit(2).alias("attempts"),
        F.lit(None).alias("webhook"),
    )

    save(rows, queue="mail", agent="etl")

    (delivery,) = bus.queue("mail").fetch(block=60)
    assert (delivery.payload, delivery.id.endswith(":high")) == ({"to": "ada", "n": 0}, True)
    assert (delivery.key, delivery.correlation_id, delivery.attempts) == ("k", "c1", 2)
    assert delivery.headers == {"lang": "de"}
    assert entries(valkey, project, "q:mail:high")[0][b"agent_id"] == b"etl"


def test_a_query_writes_each_row_once_also_when_a_batch_is_run_again(
    registered, real_url, project, valkey, tmp_path
):
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()
    (source / "a.json").write_text("".join(f'{{"n": {n}}}\n' for n in range(700)))

    def run():
        query = (
            registered.readStream.schema("n INT")
            .json(str(source))
            .select(F.to_json(F.struct("n")).alias("payload"))
            .writeStream.format("agentbus")
            .options(url=real_url, project=project, queue="mail")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    # As if the driver had been killed after the write, before the batch was done.
    for name in (checkpoint / "commits").iterdir():
        name.unlink()
    run()

    assert sorted(found["n"] for found in payloads(valkey, project)) == list(range(700))


def test_a_save_in_foreachbatch_is_written_once_when_its_batch_runs_again(
    registered, save, valkey, project, tmp_path
):
    source, checkpoint, failures = tmp_path / "in", tmp_path / "checkpoint", [RuntimeError("died")]
    source.mkdir()
    (source / "a.json").write_text("".join(f'{{"n": {n}}}\n' for n in range(700)))

    def both(batch, _number):
        tasks = batch.select(F.to_json(F.struct("n")).alias("payload"))
        save(tasks, queue="mail")
        save(tasks, queue="copy")
        if failures:
            raise failures.pop()

    def run():
        rows = registered.readStream.schema("n INT").json(str(source))
        writer = rows.writeStream.foreachBatch(both).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        query.awaitTermination()

    with pytest.raises(StreamingQueryException, match="died"):
        run()
    run()

    for stream in ("q:mail", "q:copy"):
        assert sorted(row["n"] for row in payloads(valkey, project, stream)) == list(range(700))


def test_a_save_with_a_name_and_a_number_is_written_once(registered, save, valkey, project):
    frame = registered.range(5).select(F.col("id").cast("string").alias("payload"))

    for version in (7, 7, 8):
        save(frame, queue="mail", txnAppId="nightly", txnVersion=str(version))
    save(frame, queue="mail", txnAppId="other", txnVersion="7")

    assert sorted(payloads(valkey, project)) == sorted([*range(5)] * 3)


@pytest.mark.parametrize(
    "options", [{"txnappid": "a"}, {"txnversion": "1"}, {"txnappid": "a", "txnversion": "-1"}]
)
def test_a_save_with_half_a_name_is_refused(written, options):
    with pytest.raises(UsageError, match=r"txnAppId is .* and txnVersion"):
        written("payload STRING", [("1",)], queue="mail", **options)


def test_text_is_a_payload_if_it_is_asked_for(written, valkey, project):
    written("payload STRING", [('{"not": json',)], queue="mail", payloadformat="text")

    assert payloads(valkey, project) == ['{"not": json']


def test_rows_are_kept_until_they_are_due(written, valkey, project):
    written("payload STRING, delay INT", [("1", 60), ("2", None)], queue="mail")
    written("payload STRING, key STRING, delay INT", [("3", "k", 60), ("3", "k", 60)], queue="mail")

    assert valkey.ask("ZCARD", f"{project}:delayed:mail") == 2
    assert payloads(valkey, project) == [2]


def test_rows_are_messages_on_a_topic(written, bus):
    written("message STRING", [("one",), ("two",)], topic="build")

    heard = [(m.text, m.topic, m.agent_id) for m in bus.overhear(start="first")]
    assert heard == [("one", "build", "ada"), ("two", "build", "ada")]


def test_rows_are_notes(written, bus):
    written("key STRING, value STRING, tags ARRAY<STRING>", [("k", "v", ["t"])], notes="true")

    note = bus.recall("k")
    assert (note.value, note.tags) == ("v", ("t",))


# -- once --


def test_a_task_that_runs_again_appends_only_what_it_had_not(written, valkey, project):
    rows = [(str(n),) for n in range(1200)]
    spot = Spot("q", 7, 0, 60)

    written("payload STRING", rows[:1000], spot=spot, queue="mail")
    written("payload STRING", rows, spot=spot, queue="mail")

    assert payloads(valkey, project) == list(range(1200))


def test_other_rows_in_the_same_place_are_never_left_out(written, valkey, project):
    one, other = [("1",), ("2",)], [("2",), ("1",)]

    for spot in (
        Spot("q", 7, 0, 60),
        Spot("q", 7, 1, 60),
        Spot("q", 8, 0, 60),
        Spot("r", 7, 0, 60),
    ):
        written("payload STRING", one, spot=spot, queue="mail")
    written("payload STRING", other, spot=Spot("q", 7, 0, 60), queue="mail")

    assert len(payloads(valkey, project)) == 10


def test_a_key_makes_a_row_one_task_wherever_it_is_read(written, valkey, project):
    ddl = "payload STRING, key STRING"

    written(ddl, [("1", "a"), ("2", "a"), ("3", "b"), ("4", None)], queue="mail")
    written(ddl, [("5", "b"), ("6", "c"), ("7", None)], queue="mail")

    assert payloads(valkey, project) == [1, 3, 4, 6, 7]


def test_only_the_last_two_batches_are_remembered(written, valkey, project):
    for batch in range(4):
        written("payload STRING", [("1",)], spot=Spot("q", batch, 0, 60), queue="mail")

    assert valkey.ask("ZCARD", f"{project}:sinks:q:0") == 2


def test_messages_and_delayed_tasks_are_not_repeated_either(written, valkey, project):
    for _ in range(2):
        written("message STRING", [("hi",)], spot=Spot("q", 0, 0, 60), topic="build")
        written("payload STRING, delay INT", [("1", 60)], spot=Spot("q", 0, 0, 60), queue="mail")
    written("payload STRING, delay INT", [("1", 60)], spot=Spot("q", 0, 1, 60), queue="mail")

    assert valkey.ask("XLEN", f"{project}:ch:main") == 1
    assert valkey.ask("ZCARD", f"{project}:delayed:mail") == 2


@pytest.mark.parametrize(
    ("target", "column"), [("queue", "payload"), ("topic", "message"), ("notes", "key")]
)
def test_an_unreachable_server_is_given_up_after_the_timeout(target, column, project):
    columns = (column, "value") if target == "notes" else (column,)
    schema = StructType()
    for one in columns:
        schema = schema.add(one, "string")
    given = {"url": "redis://127.0.0.1:1", "project": project, "timeout": "1"}
    given[target] = "true" if target == "notes" else "mail"
    asked = sink(given, schema, None, overwrite=False)
    table = pa.table({one: ["1"] for one in columns})

    with pytest.raises(BackendUnavailable, match="within 1 s"):
        sink_writer._write(asked, Spot(asked.run, 0, 0, 60), iter(table.to_batches()))


@pytest.mark.parametrize("keys", [True, False])
def test_rows_whose_answers_are_lost_are_written_once(registered, valkey, project, keys):
    ddl, rows = "payload STRING", [(str(n),) for n in range(3000)]
    if keys:
        ddl, rows = "payload STRING, key STRING", [(text, f"k{text}") for (text,) in rows]
    schema = StructType.fromDDL(ddl)

    with Proxy(valkey.socket) as proxy:
        proxy.loses_every = 3
        settings = resolve({"url": proxy.url, "project": project})
        asked = sink({"queue": "mail"}, schema, settings, overwrite=False)
        table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows])
        sink_writer._write(asked, Spot(asked.run, 0, 0, 60), iter(table.to_batches()))
        assert proxy.batches > 6

    assert payloads(valkey, project) == list(range(3000))


# -- a full queue --


def test_a_full_queue_is_waited_for(written, bus, valkey, project, monkeypatch):
    queue = bus.queue("mail", bound=8)
    queue.publish_many(range(8))
    waited = []

    def work(seconds):
        waited.append(seconds)
        for delivery in queue.fetch(count=4):
            delivery.ack()

    monkeypatch.setattr("agentbus.store.driver.time.sleep", work)
    written("payload STRING", [(str(n),) for n in range(8, 20)], queue="mail", bound="8")

    assert waited
    assert valkey.ask("HGET", f"{project}:stats:mail", "published") == b"20"


def test_a_queue_that_stays_full_is_an_error_and_one_refusal(written, bus, valkey, project):
    bus.queue("mail").publish_many(range(8))

    with pytest.raises(QueueFull, match="holds 8 unfinished tasks; the limit is 8"):
        written("payload STRING", [("1",)], queue="mail", bound="8", timeout="1")

    assert valkey.ask("HGET", f"{project}:stats:mail", "refused") == b"1"


@pytest.mark.parametrize(("before", "after"), [(40, 4000), (40, 160), (80, 40)])
def test_rows_are_written_once_if_the_bound_is_changed_in_the_middle_of_a_batch(
    written, bus, valkey, project, before, after
):
    rows, spot = [(str(n),) for n in range(100)], Spot("q", 7, 0, 60)
    with pytest.raises(QueueFull):
        written("payload STRING", rows, spot=spot, queue="mail", bound=str(before), timeout="1")
    if after < before:
        for delivery in bus.queue("mail").fetch(count=before):
            delivery.ack()

    written("payload STRING", rows, spot=spot, queue="mail", bound=str(after), timeout="1")

    assert valkey.ask("HGET", f"{project}:stats:mail", "published") == b"100"
    assert payloads(valkey, project)[-20:] == list(range(80, 100))


def test_a_bound_below_the_size_of_a_slice_makes_smaller_slices(written, valkey, project):
    rows, spot = [(str(n),) for n in range(100)], Spot("q", 7, 0, 60)
    with pytest.raises(QueueFull):
        written("payload STRING", rows, spot=spot, queue="mail", bound="80", timeout="1")
    valkey.ask("XTRIM", f"{project}:q:mail", "MAXLEN", 0)

    with pytest.raises(QueueFull):
        written("payload STRING", rows, spot=spot, queue="mail", bound="10", timeout="1")

    assert payloads(valkey, project) == list(range(10))


def test_at_the_bound_rows_are_refused_or_make_room_if_that_is_asked_for(
    written, bus, valkey, project
):
    bus.queue("mail").publish_many(range(8))

    with pytest.raises(QueueFull):
        written("payload STRING", [("8",)], queue="mail", bound="8", onfull="refuse")
    written("payload STRING", [("9",)], queue="mail", bound="8", onfull="trim")

    assert payloads(valkey, project) == [1, 2, 3, 4, 5, 6, 7, 9]


# -- what is refused --


@pytest.mark.parametrize(
    ("ddl", "row", "said"),
    [
        (
            "payload STRING",
            ("{x",),
            "row 1 of partition 0, column 'payload': the payload is not JSON",
        ),
        ("payload STRING", (None,), "column 'payload': the payload is null"),
        ("payload STRING", ('"\\u0000"',), "column 'payload': the payload holds a NUL"),
        ("payload STRING, key STRING", ("1", ""), "column 'key': the key is empty"),
        (
            "payload STRING, priority STRING",
            ("1", "now"),
            "column 'priority': 'now' is not a priority",
        ),
        ("payload STRING, delay INT", ("1", -1), "column 'delay': the delay is -1"),
        ("payload STRING, attempts INT", ("1", 0), "column 'attempts': the attempts are 0"),
        ("payload STRING, delay INT, expires INT", ("1", 9, 5), "column 'delay': the task expires"),
    ],
)
def test_a_row_that_cannot_be_a_task_is_named_with_its_column(written, ddl, row, said):
    with pytest.raises(UsageError) as raised:
        written(ddl, [row], queue="mail")

    assert said in raised.value.message


@pytest.mark.parametrize(
    ("row", "column"),
    [
        (("", "v", None), "key"),
        (("k", None, None), "value"),
        (("k", "\0", None), "value"),
        (("k", "v", ["a", None]), "tags"),
        (("k", "v", [""]), "tags"),
    ],
)
def test_a_row_that_cannot_be_a_note_is_named_with_its_column(written, row, column):
    with pytest.raises(UsageError) as raised:
        written("key STRING, value STRING, tags ARRAY<STRING>", [row], notes="true")

    assert raised.value.message.startswith(f"row 1 of partition 0, column '{column}': the ")


@pytest.mark.parametrize(
    ("ddl", "options", "said"),
    [
        ("payload STRING", {}, "the options name no target"),
        ("payload STRING", {"queue": "a", "topic": "b"}, "the options name queue and topic"),
        ("payload STRING", {"queue": "a", "tpoic": "b"}, "has no option 'tpoic'"),
        (
            "message STRING",
            {"topic": "b", "bound": "7"},
            "a write to a topic has no option 'bound'",
        ),
        ("payload STRING", {"queue": "a", "onFull": "drop"}, "the option onFull is 'drop'"),
        ("payload STRING", {"queue": "~own"}, "'~own'"),
        ("payload STRING", {"queue": "a", "path": "/x"}, "save and start take no path"),
        ("value STRING", {"queue": "a"}, "have no column 'payload'"),
        ("payload STRING, foo INT", {"queue": "a"}, "a queue takes no column 'foo'"),
        ("payload STRING, key INT", {"queue": "a"}, "the column 'key' for a queue is int"),
        ("payload MAP<STRING, INT>", {"queue": "a"}, "the column 'payload' for a queue is map"),
        ("message STRING, topic STRING", {"topic": "b"}, "a topic takes no column 'topic'"),
        ("key STRING, value STRING, tags STRING", {"notes": "true"}, "the column 'tags' for notes"),
    ],
)
def test_options_and_columns_are_checked_before_anything_is_written(registered, ddl, options, said):
    settings = resolve({"project": "p"})

    with pytest.raises(UsageError) as raised:
        sink(options, StructType.fromDDL(ddl), settings, overwrite=False)

    assert said in raised.value.message


def test_rows_are_only_appended(registered, real_url, project):
    rows = registered.range(1).select(F.lit("1").alias("payload"))
    writes = rows.write.format("agentbus").options(url=real_url, project=project, queue="mail")

    with pytest.raises(PySparkException) as raised:
        writes.mode("overwrite").save()

    assert told(raised.value).message.startswith("rows can only be appended")


def test_an_error_in_a_task_reaches_the_program_as_it_was_raised(registered, save):
    with pytest.raises(PySparkException) as raised:
        save(registered.range(1).select(F.lit("{").alias("payload")), queue="mail")

    error = told(raised.value)
    assert isinstance(error, InvalidPayload)
    assert "column 'payload': the payload is not JSON" in error.message


def test_slices_of_a_small_queue_are_small():
    rows = [(b"1", b"", None, None, "normal", None, None)] * 9

    assert [len(each.rows) for each in queue_slices.sliced(rows, 4)] == [4, 4, 1]
