"""The Spark source `agentbus`: streams as rows, at rest and as they grow."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

import agentbus
from agentbus.core.settings import resolve
from agentbus.errors import BackendUnavailable
from agentbus.pipeline.rows import schema
from agentbus.pipeline.source.data_source import AgentBusSource
from agentbus.pipeline.source.growing_reader import GrowingReader
from agentbus.pipeline.source.options import Options
from agentbus.pipeline.spark.errors import told
from tests.pipeline.queries import completed
from tests.tiers import nightly


@pytest.fixture(scope="module")
def registered(spark):
    spark.dataSource.register(AgentBusSource)
    return spark


@pytest.fixture
def bus(real_url, project):
    with agentbus.connect(real_url, project=project, agent="ada") as opened:
        yield opened


@pytest.fixture
def load(registered, real_url, project):
    """Return a function that reads the project's streams, with options."""

    def _load(**options):
        reader = registered.read.format("agentbus").options(url=real_url, project=project)
        return reader.options(**options).load()

    return _load


@pytest.fixture
def grow(registered, real_url, project, tmp_path):
    """Return a function that runs a stream to what is there now, and returns the rows that it got."""

    def _grow(checkpoint: str = "c", **options):
        source = registered.readStream.format("agentbus").options(url=real_url, project=project)
        got: list = []
        writer = source.options(**options).load().writeStream
        completed(
            writer.foreachBatch(lambda frame, _n: got.append(frame.collect()))
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
        )
        return got

    return _grow


def fill(valkey, project, stream, ids):
    for entry_id in ids:
        valkey.ask("XADD", f"{project}:{stream}", entry_id, "payload", f'"{entry_id}"')


def numbered(count, start=1):
    return [f"{n}-1" for n in range(start, start + count)]


def test_all_kinds_of_streams_are_rows_of_one_schema(load, bus):
    bus.speak("hi", topic="build")
    bus.queue("mail").publish({"to": "a"}, correlation_id="c1", priority="high")

    frame = load()

    assert frame.schema == StructType.fromDDL(schema.DDL)
    rows = {row.stream: row for row in frame.collect()}
    assert set(rows) == {"ch:main", "q:mail:high"}
    assert (rows["ch:main"].agent, rows["ch:main"].topic) == ("ada", "build")
    assert rows["q:mail:high"].correlation_id == "c1"
    assert json.loads(rows["q:mail:high"].payload) == {"to": "a"}


def test_a_project_without_streams_is_an_empty_frame(load):
    assert load().collect() == []


def test_a_stream_is_read_in_parts_and_is_whole(load, valkey, project):
    fill(valkey, project, "q:mail", numbered(500))

    frame = load(partitionRows="60", pageRows="7")

    assert frame.rdd.getNumPartitions() == 9
    assert sorted(int(row.id.split("-")[0]) for row in frame.collect()) == list(range(1, 501))


def test_streams_are_chosen(load, bus, valkey, project):
    bus.speak("hi")
    fill(valkey, project, "q:a", ["1-1"])
    fill(valkey, project, "q:b", ["1-1"])

    assert {row.stream for row in load(streams="queues").collect()} == {"q:a", "q:b"}
    assert {row.stream for row in load(streams="channel,q:b").collect()} == {"ch:main", "q:b"}


def test_from_and_to_are_inclusive(load, valkey, project):
    fill(valkey, project, "q:mail", numbered(10))

    frame = load(**{"from": "3-1", "to": "5-1"})

    assert [row.id for row in frame.collect()] == ["3-1", "4-1", "5-1"]


def test_a_filter_of_one_query_leaves_the_rows_of_others(load, pushing, valkey, project):
    fill(valkey, project, "q:mail", numbered(4))
    fill(valkey, project, "q:other", numbered(2))
    frame = load()
    mail, other = frame.where("queue = 'mail'"), frame.where("queue = 'other'")

    assert mail.union(other).count() == 6
    assert (mail.count(), other.count(), frame.count()) == (4, 2, 6)


def test_what_was_trimmed_away_is_a_row_that_counts_it(load, valkey, project):
    fill(valkey, project, "q:mail", numbered(10))
    valkey.ask("XTRIM", f"{project}:q:mail", "MAXLEN", "3")

    rows = load().collect()

    (gap,) = (row for row in rows if row.kind == "gap")
    assert (gap.stream, gap.queue, gap.lost) == ("q:mail", "mail", 7)
    assert gap.fields == {"after": "0-0", "before": "8-1"}
    assert sum(row.kind == "queue" for row in rows) == 3


def test_entries_deleted_from_the_middle_are_counted_too(load, valkey, project):
    fill(valkey, project, "q:mail", numbered(10))
    valkey.ask("XDEL", f"{project}:q:mail", "5-1", "6-1")

    for size in ("3", "100"):
        rows = load(partitionRows=size).collect()
        assert sum(row.lost or 0 for row in rows) == 2
        assert sum(row.kind == "queue" for row in rows) == 8


def test_a_stream_that_is_followed_hears_each_entry_once(grow, valkey, project):
    fill(valkey, project, "q:mail", numbered(5))
    first = grow()
    fill(valkey, project, "q:mail", numbered(5, start=6))
    fill(valkey, project, "q:new", ["1-1"])

    second = grow()
    third = grow()

    assert [row.id for batch in first for row in batch] == numbered(5)
    assert sorted(row.stream for batch in second for row in batch) == ["q:mail"] * 5 + ["q:new"]
    assert third == []


def test_batches_are_as_large_as_they_may_be(grow, valkey, project):
    fill(valkey, project, "q:mail", numbered(25))

    batches = grow(maxRowsPerTrigger="10")

    assert [len(batch) for batch in batches] == [10, 10, 5]


def test_a_batch_keeps_its_bound_over_many_streams_which_take_turns(valkey, project, real_url):
    names = [f"q:{n}" for n in range(12)]
    for name in names:
        fill(valkey, project, name, numbered(2))
    options = Options({"maxrowspertrigger": "5"}, resolve({"url": real_url, "project": project}))
    reader = GrowingReader(options)
    offset, sizes = reader.initialOffset(), []
    while (end := reader.latestOffset(offset, ReadMaxRows(5))) != offset:
        sizes.append(sum(end[name][1] - offset.get(name, ["", 0])[1] for name in end))
        offset = end
        # The first streams grow all the time, and the others have their turn.
        if len(sizes) < 4:
            fill(valkey, project, "q:0", [f"{10 + len(sizes)}-1"])
    reader.stop()

    assert max(sizes) == 5
    assert sum(sizes) == 27
    assert {name: offset[name][1] for name in names} == {**dict.fromkeys(names, 2), "q:0": 5}


def test_lost_entries_count_as_their_row_in_a_limited_batch(grow, valkey, project):
    for name in ("q:a", "q:b", "q:c"):
        fill(valkey, project, name, numbered(30))
        valkey.ask("XTRIM", f"{project}:{name}", "MAXLEN", "4")

    batches = grow(maxRowsPerTrigger="3")

    assert max(map(len, batches)) == 3
    assert sum(row.lost or 0 for batch in batches for row in batch) == 78
    assert sum(row.kind == "queue" for batch in batches for row in batch) == 12


def test_entries_trimmed_between_two_batches_are_counted(grow, valkey, project):
    fill(valkey, project, "q:mail", numbered(5))
    grow()
    fill(valkey, project, "q:mail", numbered(20, start=6))
    valkey.ask("XTRIM", f"{project}:q:mail", "MAXLEN", "4")

    (batch,) = grow()

    assert [row.lost for row in batch if row.kind == "gap"] == [16]
    assert sum(row.kind == "queue" for row in batch) == 4


def test_a_limited_batch_counts_what_was_trimmed(grow, valkey, project):
    fill(valkey, project, "q:mail", numbered(50))
    valkey.ask("XTRIM", f"{project}:q:mail", "MAXLEN", "30")

    batches = grow(maxRowsPerTrigger="10")

    rows = [row for batch in batches for row in batch]
    assert sum(row.lost or 0 for row in rows) == 20
    assert sum(row.kind == "queue" for row in rows) == 30


def test_from_is_where_a_stream_begins(grow, valkey, project):
    fill(valkey, project, "q:mail", numbered(10))

    (batch,) = grow(**{"from": "8-1"})

    assert [row.id for row in batch] == ["8-1", "9-1", "10-1"]


@pytest.mark.parametrize(
    "restored",
    [
        nightly(numbered(2), id="it is shorter"),
        nightly([*numbered(3), *numbered(9, 20)], id="it outgrew"),
        # Which a task finds by counting.
        pytest.param(["1-1", "5-1", *numbered(9, 20)], id="it outgrew, and has the last id again"),
    ],
)
def test_a_server_that_went_back_ends_the_query_with_the_reason(grow, valkey, project, restored):
    fill(valkey, project, "q:mail", numbered(5))
    grow()
    valkey.ask("DEL", f"{project}:q:mail")
    fill(valkey, project, "q:mail", restored)

    with pytest.raises(StreamingQueryException, match="went back in time"):
        grow()


def test_a_stream_that_is_given_an_end_says_that_it_has_none(grow):
    with pytest.raises(PySparkException, match="option to is not for a stream"):
        grow(to="5m")


def test_a_password_in_an_option_is_refused_and_not_shown(registered):
    with pytest.raises(AnalysisException, match="the option url holds a password") as refused:
        registered.read.format("agentbus").option("url", "redis://:s3cret@localhost").load()

    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stream": "x"}, "has no option 'stream'"),
        ({"streams": "everything"}, "is not a stream"),
        ({"partitionRows": "-1"}, "give a number above 0"),
        ({"from": "yesterday"}, "is not a point to start from"),
    ],
)
def test_a_wrong_option_is_told(load, options, words):
    with pytest.raises(PySparkException, match=words):
        load(**options).collect()


def test_a_table_in_the_catalog_is_refused_with_the_reason(registered):
    with pytest.raises(
        PySparkException, match="catalog cannot keep a table of the source agentbus"
    ):
        registered.sql("CREATE TABLE entries USING agentbus OPTIONS (streams 'queues')")


def test_a_server_that_is_not_there_is_told(registered, project):
    frame = registered.read.format("agentbus").options(url="redis://127.0.0.1:1", project=project)

    with pytest.raises(PySparkException, match="BackendUnavailable") as caught:
        frame.load().collect()
    found = told(caught.value)

    assert isinstance(found, BackendUnavailable)
    assert "bus.doctor()" not in found.message
    assert "'agentbus doctor'" in (found.shell_hint or "")
    assert str(found).endswith("; check the server with bus.doctor(), or connect to another URL")
