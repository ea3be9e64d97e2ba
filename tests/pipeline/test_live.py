"""The report that goes on: windows are told as they change, and forgotten when they are over."""

from __future__ import annotations

import datetime
import os
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812

from agentbus.errors import AgentBusError
from agentbus.pipeline.reports.live import updates, windows
from agentbus.pipeline.rows import schema
from tests.pipeline.histories import START


def entry(minute, kind="queue", **columns):
    given = {"stream": "q:mail", "queue": "mail", "payload": '"é"'} if kind == "queue" else {}
    return dict.fromkeys(schema.COLUMNS) | {
        "kind": kind,
        "time": START + datetime.timedelta(minutes=minute),
        **given,
        **columns,
    }


@pytest.fixture
def stream(spark, tmp_path):
    """Makes a stream whose batches are these, one after the other."""

    def make(*batches):
        for number, rows in enumerate(batches):
            path = tmp_path / f"{number}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, schema=schema.ARROW), path)
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        reader = spark.readStream.schema(schema.DDL).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(tmp_path))

    return make


@pytest.fixture(autouse=True)
def one_partition(spark):
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)


def test_a_window_is_told_again_when_it_has_changed(stream):
    work = {"stream": "metrics", "queue": "mail", "agent": "a"}
    rows = stream(
        [entry(0), entry(0.5), entry(1)],
        [
            entry(0.9),
            entry(1.5, "gap", stream="q:mail", lost=7),
            entry(1, "metrics", fields=[("processed", "3"), ("dead", "no")], **work),
        ],
    )

    told = []
    updates(windows(rows), lambda table: told.append(table.to_pylist()), every=None)

    figures = [
        {(r["kind"], r["time"].minute): (r["entries"], r["bytes"], r["lost"]) for r in batch}
        for batch in told
    ]
    assert figures == [
        {("queue", 0): (2, 8, 0), ("queue", 1): (1, 4, 0)},
        {("queue", 0): (3, 12, 0), ("gap", 1): (0, 0, 7), ("metrics", 1): (1, 0, 0)},
    ]
    (work,) = [r for r in told[1] if r["kind"] == "metrics"]
    assert (work["processed"], work["dead"], work["agent"]) == (3, 0, "a")


@pytest.mark.slow
def test_windows_that_are_over_are_forgotten_and_late_entries_left_out(stream):
    hours = [[entry(60 * hour + minute) for minute in range(40)] for hour in range(4)]
    late = [entry(5), entry(60 * 3 + 39)]

    query = (
        windows(stream(*hours, late))
        .writeStream.outputMode("update")
        .format("noop")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    states = [progress["stateOperators"][0] for progress in query.recentProgress]
    # One batch's windows, and what the watermark has not passed of them after it.
    assert max(state["numRowsTotal"] for state in states) <= 40 + 3
    assert states[-1]["numRowsTotal"] <= 3
    assert sum(state["numRowsDroppedByWatermark"] for state in states) == 1


def test_what_is_told_adds_up_to_what_there_was(stream):
    batches = [[entry(n, agent=f"a{n % 3}") for n in range(k, k + 3)] for k in (0, 1, 2)]

    last = {}

    def tell(table):
        last.update({(row["time"], row["agent"]): row["entries"] for row in table.to_pylist()})

    updates(windows(stream(*batches), "2 minutes", "1 hour"), tell, every=None)

    expected = Counter(
        (row["time"] - datetime.timedelta(minutes=row["time"].minute % 2), row["agent"])
        for batch in batches
        for row in batch
    )
    assert last == expected


def test_it_stops_when_its_reader_does(spark, stream):
    def tell(table):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        updates(windows(stream([entry(0)], [entry(1)])), tell)

    assert spark.streams.active == []


def test_a_stream_that_fails_says_why(stream):
    failing = stream([entry(0)]).withColumn("lost", F.expr("cast(raise_error('gone') as bigint)"))

    with pytest.raises(AgentBusError, match="gone"):
        updates(windows(failing), print, every=None)
