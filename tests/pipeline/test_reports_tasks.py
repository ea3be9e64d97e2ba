"""The reports about work say what a plain program reckons from the same rows."""

from __future__ import annotations

import datetime
import math
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st
from pyspark.sql import functions as F  # noqa: N812

from agentbus.pipeline.reports import NAMES, anomalies, lag, load, page, running, slowest, wording
from agentbus.pipeline.reports.aggregate import Figures
from agentbus.pipeline.reports.span import Span
from agentbus.pipeline.rows import schema
from agentbus.pipeline.rows.typed_columns import typed
from tests.pipeline.histories import START, history
from tests.pipeline.reckoning import Reckoning
from tests.tiers import nightly

UTC = datetime.UTC
REPORTS = ("tasks", "lag", "slowest", "anomalies")
KEYS = ("queue", "group", "worker", "what", "name", "figure", "time", "cause")


@pytest.fixture(scope="module")
def framed(spark, tmp_path_factory):
    """Makes a frame of rows, as files are read: of a few rows one part, of a table several."""

    def make(rows):
        if not rows:
            return spark.createDataFrame([], schema.DDL)
        few = isinstance(rows, list)
        table = pa.Table.from_pylist(rows, schema.ARROW) if few else rows
        path = tmp_path_factory.mktemp("rows")
        for number in range(1 if few else 3):
            size = -(-table.num_rows // (1 if few else 3))
            pq.write_table(table.slice(number * size, size), str(path / f"{number}.parquet"))
        frame = spark.read.schema(schema.DDL).parquet(str(path))
        return frame.coalesce(1) if few else frame

    return make


def said(frame, *names):
    """What the reports say: table by table, all of its rows."""
    names = names or REPORTS
    figures = running.figures(frame, names)
    return {
        f"{name}.{table.name}": [{c: row[c] for c in table.columns} for row in table.rows]
        for name in names
        for table in load(name).build(figures)
    }


def same(found, expected):
    """Rows are the same in any order, and numbers as good as equal."""
    by_key = [
        {tuple(row.get(key) for key in KEYS): row for row in rows} for rows in (found, expected)
    ]
    assert by_key[0].keys() == by_key[1].keys()
    assert len(found) == len(expected)
    for key, row in by_key[0].items():
        wanted = by_key[1][key]
        assert row.keys() == wanted.keys()
        for name, value in row.items():
            near = isinstance(value, float) and isinstance(wanted[name], (int, float))
            assert (
                math.isclose(value, wanted[name], rel_tol=1e-9, abs_tol=1e-6)
                if near
                else value == wanted[name]
            ), (key, name, value, wanted[name])


def without_places(rows):
    return [{k: v for k, v in row.items() if not k.startswith("by_")} for row in rows]


def firsts(rows, places, key):
    """The rows that are among the first twenty by a figure."""
    chosen = set()
    for figure in places:
        ordered = sorted(rows, key=lambda row: (-(row[figure] or 0), key(row)))
        chosen |= {key(row) for row in ordered[:20]}
    return [row for row in rows if key(row) in chosen]


def spoilt(table):
    """A history with rows among it that other programs wrote, or that say nothing."""
    rows = table.to_pylist()
    for row in rows[7::97]:
        if row["kind"] == "metrics":
            row["fields"] = [*row["fields"][2:], ("ran", "[1,-1]"), ("busy_ms", "-5")]
            row["fields"] += [("processed", "some"), ("failed", "1.5"), ("dead", "-1")]
            row["fields"] = list(dict(row["fields"]).items())
            row["queue"] = row["queue"] if row["seq"] % 2 else None
        elif row["kind"] == "dead_letter":
            row["fields"] = [("attempts", "many"), ("error", ":\n")]
        elif row["kind"] != "gap":
            row |= {"agent": None, "topic": "", "payload": None, "fields": None}
    return pa.Table.from_pylist(rows, schema=schema.ARROW)


def reckoned(framed, size, seed, days):
    """What a plain program reckons of a history made from a seed, and the history."""
    table = spoilt(history(size, seed, days))
    return framed(table), Reckoning(table.to_pylist())


SEEDS = st.integers(0, 2**32)
ONE = settings(max_examples=1)
SIZES = pytest.mark.parametrize("size", [1_000, nightly(10_000)])


@SIZES
@ONE
@given(seed=SEEDS)
def test_tasks_are_what_a_plain_program_reckons(framed, size, seed):
    frame, plain = reckoned(framed, size, seed, 6)

    found = said(frame, "tasks")

    same(found["tasks.outcomes"], plain.outcomes())
    same(found["tasks.throughput"], plain.throughput())
    same(found["tasks.timings"], plain.timings())
    same(found["tasks.causes"], plain.causes())


@SIZES
@ONE
@given(seed=SEEDS)
def test_lag_and_crashes_are_what_a_plain_program_reckons(framed, size, seed):
    frame, plain = reckoned(framed, size, seed, 0.1)

    found = said(frame, "lag")

    same(found["lag.groups"], plain.lag_groups())
    same(found["lag.times"], plain.lag_times())
    same(found["lag.workers"], plain.workers())
    same(found["lag.crashes"], plain.crashes())


@SIZES
@ONE
@given(seed=SEEDS)
def test_the_slowest_and_odd_hours_are_what_a_plain_program_reckons(framed, size, seed):
    frame, plain = reckoned(framed, size, seed, 20)

    found = said(frame, "slowest", "anomalies")

    places = ("mean_ms", "p99_ms", "busy_ms")
    for name, keys in (
        ("queues", ("queue",)),
        ("groups", ("queue", "group")),
        ("workers", ("queue", "group", "worker")),
    ):
        rows = plain.slow(*keys)
        expected = firsts(rows, places, lambda row, keys=keys: tuple(row[k] or "" for k in keys))
        same(without_places(found[f"slowest.{name}"]), expected)
    noisy = plain.noisy()
    expected = []
    for what in ("agent", "topic", "queue"):
        those = [row for row in noisy if row["what"] == what]
        expected += firsts(those, ("entries", "bytes"), lambda row: row["name"])
    same(without_places(found["slowest.noisiest"]), expected)
    odd = list(found["anomalies.hours"])
    directions = [row.pop("direction") for row in odd]
    assert directions == ["more" if row["score"] > 0 else "less" for row in odd]
    same(odd, [row for row in plain.judged() if abs(row["score"]) > 3.5])


@ONE
@given(seed=SEEDS)
def test_each_hour_is_judged_as_a_plain_program_does_it(framed, seed):
    frame, plain = reckoned(framed, 1_000, seed, 20)

    found = list(anomalies.judged(running.figures(frame, ["anomalies"])))

    # Those in which nothing is counted or expected are left out.
    hours = [[r for r in rows if r["number"] or r["expected"]] for rows in (found, plain.judged())]
    for row in hours[0]:
        del row["direction"]
    same(*hours)


@pytest.mark.slow
def test_compacted_rows_say_the_same_as_raw_ones(spark, framed, tmp_path):
    raw = framed(history(1000, 5, 2))
    typed(raw.where("kind = 'metrics'"), "metrics").write.parquet(str(tmp_path / "typed"))
    compacted = spark.read.parquet(str(tmp_path / "typed")).withColumn("fields", F.lit(None))

    found = [said(rows, "tasks")["tasks.outcomes"] for rows in (raw, compacted)]

    assert found[0]
    assert found[0] == found[1]


# -- edges ---------------------------------------------------------------------------------------------


def row(kind, moment=START, **columns):
    fields = columns.pop("fields", None)
    return dict.fromkeys(schema.COLUMNS) | {
        "kind": kind,
        "time": moment,
        "seq": 0,
        "fields": None if fields is None else [(k, str(v)) for k, v in fields.items()],
        **columns,
    }


def work(moment=START, queue="mail", **fields):
    fields = {"group": "default", "worker": "w", **fields}
    return row("metrics", moment, stream="metrics", event="work", queue=queue, fields=fields)


@pytest.mark.slow
def test_of_no_rows_every_table_is_empty(framed):
    found = said(framed([]), "tasks", "anomalies")

    assert len(found) == 5
    assert {name: rows for name, rows in found.items() if rows} == {}


@pytest.mark.slow
def test_rows_of_nothing_but_null_say_nothing(framed):
    rows = [dict.fromkeys(schema.COLUMNS) | {"kind": kind} for kind in schema.KINDS]

    assert {name: rows for name, rows in said(framed(rows)).items() if rows} == {}


def test_one_task_that_nobody_took_is_all_the_lag_there_is(framed):
    rows = [row("queue", stream="q:mail", queue="mail", payload="{}")]

    found = said(framed(rows), "tasks", "lag")

    assert found["lag.groups"] == [
        {
            "queue": "mail",
            "group": None,
            "published": 1,
            "settled": 0,
            "backlog_before": 0,
            "lag": 1,
            "behind_ms": 1_000,
            "highest": 1,
            "highest_at": START,
        }
    ]
    assert [r["published"] for r in found["tasks.throughput"]] == [1]
    assert {name for name, rows in found.items() if rows} == {
        *("lag.groups", "lag.times", "tasks.throughput"),
    }


def test_a_cancelled_task_stays_in_the_lag_as_the_table_says(framed):
    rows = [row("queue", stream="q:mail", queue="mail"), work(received=1, cancelled=1)]

    groups, *_ = load("lag").build(running.figures(framed(rows), ("lag",)))

    assert [r["lag"] for r in groups.rows] == [1]
    assert "cancelled" in groups.note


def test_a_lag_that_does_not_change_is_listed_as_standing(framed):
    def at(minutes):
        return START + datetime.timedelta(minutes=minutes)

    came = [row("queue", at(0), stream="q:mail", queue="mail")] * 3
    rows = [*came, work(at(2), processed=1), work(at(5), processed=1), row("channel", at(8))]

    found = said(framed(rows), "lag")

    assert [(r["time"], r["lag"], r["highest"]) for r in found["lag.times"]] == [
        (at(minute), *([3] * 2 if minute < 2 else [2] * 2 if minute < 5 else [1] * 2))
        for minute in range(9)
    ]
    (group,) = found["lag.groups"]
    assert (group["lag"], group["behind_ms"], group["highest_at"]) == (1, 9 * 60_000, at(0))


@pytest.mark.slow
def test_a_queue_with_nothing_to_do_is_not_listed_while_it_is_idle(framed):
    later = START + datetime.timedelta(minutes=50)
    rows = [row("queue", moment, stream="q:mail", queue="mail") for moment in (START, later)]
    rows += [work(START, processed=1), work(later, processed=1)]

    found = said(framed(rows), "lag")

    assert [(r["time"], r["lag"]) for r in found["lag.times"]] == [(START, 0), (later, 0)]


def test_a_backlog_from_before_stands_from_the_beginning(framed):
    later = START + datetime.timedelta(minutes=5)
    rows = [row("channel", START), work(later, processed=2), row("channel", later)]

    found = said(framed(rows), "lag")

    assert [r["lag"] for r in found["lag.times"]] == [2, 2, 2, 2, 2, 0]


def test_data_of_a_few_seconds_are_cut_into_seconds(framed):
    rows = [
        row("queue", START + datetime.timedelta(seconds=n), stream="q:mail", queue="mail")
        for n in (0, 0, 15)
    ]

    found = said(framed(rows), "tasks", "activity")

    expected = [(START, 2), (START + datetime.timedelta(seconds=15), 1)]
    assert [(r["time"], r["published"]) for r in found["tasks.throughput"]] == expected
    assert [(r["time"], r["tasks"]) for r in found["activity.times"]] == expected


def test_a_task_that_ran_four_times_is_one_task_and_four_runs(framed):
    rows = [work(received=4, failed=4, retried=3, dead=1, waited="[1]", ran="[4]", busy_ms="8")]

    found = said(framed(rows), "tasks")

    (outcome,) = found["tasks.outcomes"]
    assert (outcome["tasks"], outcome["runs"], outcome["attempts"]) == (1, 4, 4)
    assert {r["what"]: (r["tasks"], r["runs"]) for r in found["tasks.timings"]} == {
        "running": (1, 4),
        "waiting": (1, 4),
    }
    assert [r["mean_ms"] for r in found["tasks.timings"] if r["what"] == "running"] == [2]


def test_percentiles_below_a_millisecond_say_no_more_than_that(framed):
    # Of 100 runs, 60 took less than 1 ms, and 40 up to 8 ms.
    rows = [work(ran="[60,0,0,40]", busy_ms="250", waited="[1]", waited_ms="0.02")]
    figures = running.figures(framed(rows), ("tasks", "slowest"))

    tables = {t.name: t for name in ("tasks", "slowest") for t in load(name).build(figures)}

    ran, waited = tables["timings"].rows
    assert (ran["p50_ms"], ran["p90_ms"]) == (None, 7.0)
    assert [waited[name] for name in ("p50_ms", "p90_ms", "p99_ms")] == [None] * 3
    for name in ("timings", "queues", "groups", "workers"):
        table = running.fill("tasks", tables[name])
        assert table.rows[0]["p50_ms"] is None
        assert wording.cell("p50_ms", None, table.unmeasured) == "< 1 ms"
        assert "from 1 ms to 70 min are right within a factor of 2" in table.note


def test_a_percentile_beyond_the_last_bound_is_said_to_stand_for_all_that_is_longer(framed):
    rows = [work(ran=f"[{'0,' * 23}1]", busy_ms="86400000")]

    table, *_ = load("slowest").build(running.figures(framed(rows), ("slowest",)))

    shown = wording.cell("p99_ms", table.rows[0]["p99_ms"])
    assert f"{shown} also stands for all that is longer" in table.note


def test_the_table_of_groups_is_on_the_page_only_where_it_differs_from_that_of_queues(framed):
    rows = [work(queue=name, ran="[0,1]") for name in ("mail", "images")]
    outcomes = [
        running.run(["slowest"], framed([*rows, *more]), table=table)
        for more, table in (([], None), ([work(group="audit", ran="[0,1]")], None), ([], "groups"))
    ]

    pages = [page.render(one, source="bus") for one in outcomes]

    assert ["Slowest groups" in text for text in pages] == [False, True, True]
    assert all(len(t.rows) for one in outcomes for t in one.results[0].tables if t.name == "groups")


def test_notes_name_columns_as_their_heads_do():
    """A quoted name in a note is the head of a column, or a verb or policy of the product."""
    known = {"agentbus ask"}
    for name in NAMES:
        for table in load(name).build(Figures(Span())):
            heads = {wording.heading(column) for column in table.columns}
            for note in (table.note, table.chart and table.chart.note):
                quoted = set(re.findall(r"'([^']+)'(?!s)", (note or "").replace("'s ", "s ")))
                assert quoted <= heads | known, (name, table.name)


def test_no_two_columns_of_a_table_have_one_name():
    figures = Figures(Span())
    for name in NAMES:
        report = load(name)
        tables = report.build(figures)
        assert tuple(table.name for table in tables) == report.tables
        for table in tables:
            headings = [wording.heading(column) for column in table.columns]
            assert len(set(headings)) == len(headings), (name, table.name, headings)


def test_numbers_that_nobody_counts_are_none_and_large_ones_are_exact(framed):
    most = 10**15 - 1
    rows = [
        work(
            START + datetime.timedelta(minutes=n),
            received=most + 1,
            processed=most,
            dead=2**63 - 1,
            stale=2**64,
            ran=f"[{most}]",
            busy_ms="9" * 17,
        )
        for n in range(3)
    ]

    found = said(framed(rows), "tasks")

    (outcome,) = found["tasks.outcomes"]
    assert [outcome[name] for name in ("received", "processed", "dead", "stale")] == [
        *(0, 3 * most, 0, 0),
    ]
    assert (outcome["attempts"], outcome["busy_ms"]) == (1, pytest.approx(3e17))
    (timing,) = found["tasks.timings"]
    assert (timing["runs"], timing["p50_ms"]) == (3 * most, None)


@pytest.mark.slow
def test_a_sum_beyond_64_bits_is_no_error(framed):
    rows = [row("gap", stream="q:mail", lost=2**63 - 1), row("gap", stream="q:mail", lost=1)]

    found = said(framed([*rows, work(processed=1)]), "lag")

    assert [r["settled"] for r in found["lag.groups"]] == [1]


def test_midnight_belongs_to_the_day_that_it_begins(framed):
    midnight = datetime.datetime(2026, 3, 29, tzinfo=UTC)
    just_before = midnight - datetime.timedelta(milliseconds=1)
    earlier = midnight - datetime.timedelta(hours=5)
    rows = [work(at, processed=n) for n, at in enumerate((earlier, just_before, midnight), 1)]

    found = said(framed(rows), "tasks")

    assert [(r["time"], r["processed"]) for r in found["tasks.throughput"]] == [
        (earlier, 1),
        (midnight - datetime.timedelta(hours=1), 2),
        (midnight, 3),
    ]


def test_a_worker_that_held_a_task_and_fell_silent_has_vanished(framed):
    later = START + datetime.timedelta(seconds=lag.SILENT_SECONDS + 1)
    rows = [
        work(worker="gone", received=2, processed=1),
        work(worker="idle", received=1, processed=1),
        work(later, worker="there", received=2, processed=1, reclaimed=1),
    ]

    found = said(framed(rows), "lag")

    assert [(r["worker"], r["vanished"], r["held"]) for r in found["lag.workers"]] == [
        ("gone", True, 1),
        ("there", False, 1),
    ]
    assert [(r["time"], r["reclaimed"], r["vanished"]) for r in found["lag.crashes"]] == [
        (START, 0, 1),
        (START + datetime.timedelta(minutes=5), 1, 0),
    ]


def test_a_worker_with_a_long_task_and_a_program_without_heartbeats_have_not_vanished(framed):
    def at(seconds):
        return START + datetime.timedelta(seconds=seconds)

    rows = [work(worker=name, received=1) for name in ("alive", "gone", "hand:vm:1:ab")]
    rows += [work(at(second), worker="alive") for second in range(60, 1200, 60)]

    found = said(framed(rows), "lag")

    assert [r["worker"] for r in found["lag.workers"]] == ["gone"]
    assert [r["vanished"] for r in found["lag.crashes"]] == [1]


@pytest.mark.slow
def test_what_was_done_before_it_came_had_waited_before(framed):
    rows = [
        work(processed=5),
        row("queue", START + datetime.timedelta(minutes=2), stream="q:mail", queue="mail"),
        row("gap", START + datetime.timedelta(minutes=3), stream="q:mail:high", lost=2),
    ]

    (group,) = said(framed(rows), "lag")["lag.groups"]

    assert (group["backlog_before"], group["published"], group["lag"]) == (5, 3, 3)


def test_an_hour_that_fell_silent_is_odd_and_the_last_one_is_not_judged(framed):
    rows = []
    for day in range(5):
        for hour in (9, 10, 11):
            at = START + datetime.timedelta(days=day, hours=hour)
            busy = 1 if (day, hour) in ((4, 10), (4, 11)) else 40
            rows += [row("queue", at, stream="q:mail", queue="mail")] * busy

    (odd,) = said(framed(rows), "anomalies")["anomalies.hours"]

    assert (odd["name"], odd["direction"], odd["number"], odd["days"]) == ("mail", "less", 1, 4)
    assert odd["time"] == START + datetime.timedelta(days=4, hours=10)
    assert (odd["expected"], odd["score"]) == (40, pytest.approx(-39 / math.sqrt(40)))


@pytest.mark.slow
def test_two_earlier_days_are_too_few_to_judge(framed):
    rows = [
        row("queue", START + datetime.timedelta(days=day, hours=9), stream="q:a", queue="a")
        for day in range(3)
        for _ in range(1 if day < 2 else 1000)
    ]

    assert said(framed(rows), "anomalies")["anomalies.hours"] == []


def test_the_slowest_comes_first_with_its_places(framed):
    rows = [
        work(queue="fast", worker="a", ran="[9]", busy_ms="4.5"),
        work(queue="slow", worker="b", ran="[0,0,0,0,0,0,0,0,0,0,3]", busy_ms="2400"),
        work(queue="busy", worker="c", ran="[0,0,0,90]", busy_ms="9000"),
    ]
    frame = framed(rows)

    found = slowest.slow(running.figures(frame, ["slowest"]), "queue")

    assert [(r["queue"], r["by_p99"], r["by_mean"], r["by_busy"]) for r in found] == [
        ("slow", 1, 1, 2),
        ("busy", 2, 2, 1),
        ("fast", 3, 3, 3),
    ]
