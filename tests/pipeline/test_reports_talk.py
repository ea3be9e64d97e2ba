"""The reports about talk and flags say what a plain program finds in the same entries."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter, defaultdict
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from pyspark.sql import functions as F  # noqa: N812

from agentbus.errors import AgentBusError, UsageError
from agentbus.pipeline import reports
from agentbus.pipeline.reports import activity, conversations, flags, running, svg
from agentbus.pipeline.reports.report import Table
from agentbus.pipeline.reports.span import Span
from tests.pipeline.reckoning import written
from tests.pipeline.talk import START, frame, gap, history, row, said, task
from tests.tiers import nightly

TALK = ("activity", "conversations", "flags")
Rows = list[dict[str, Any]]


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda one: (one["time"], one["seq"]))


def ms(later: datetime, earlier: datetime) -> int:
    return round((later - earlier).total_seconds() * 1000)


def share(values: list[int], part: float) -> float | None:
    """Return a percentile, interpolated between two values."""
    if not values:
        return None
    values = sorted(values)
    at = (len(values) - 1) * part
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def found(outcome: running.Outcome) -> dict[str, Any]:
    """Return all tables by report and name."""
    return {f"{t.report}.{t.name}": t for r in outcome.results for t in r.tables}


def near(value: float | None) -> Any:
    return None if value is None else pytest.approx(value, abs=0.051)


# -- the reference -----------------------------------------------------------------------------------


def expected_activity(rows: Rows, column: str) -> dict[Any, tuple[int, ...]]:
    counts: dict[Any, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for one in rows:
        if one["kind"] == "gap":
            continue
        key = one["time"].replace(minute=0, second=0, microsecond=0)
        key = key if column == "time" else one[column]
        which = 2 if one["kind"] == "queue" else 0 if one["event"] is None else 1
        counts[key][which] += 1
        counts[key][3] += written(one["payload"])
    return {key: tuple(values) for key, values in counts.items()}


def expected_answers(rows: Rows) -> dict[tuple[str, str], list[int]]:
    last: dict[Any, dict[str, Any]] = {}
    pairs: dict[tuple[str, str], list[int]] = defaultdict(list)
    for one in in_order(rows):
        if one["kind"] != "channel" or one["event"] is not None:
            continue
        before, last[one["topic"]] = last.get(one["topic"]), one
        if before is None or before["agent"] == one["agent"]:
            continue
        took = ms(one["time"], before["time"])
        if took <= 600_000:
            pairs[one["agent"], before["agent"]].append(took)
    return pairs


def expected_replies(rows: Rows) -> dict[tuple[str, str | None], tuple[int, list[int]]]:
    tasks = [one for one in in_order(rows) if one["kind"] == "queue"]
    metas = [json.loads(one["fields"].get("meta", "{}")) for one in tasks]
    by_about: dict[Any, list[Any]] = defaultdict(list)
    for one, meta in zip(tasks, metas, strict=True):
        by_about[one["queue"], meta.get("correlation_id")].append((one, meta))
    asked: dict[tuple[str, str | None], tuple[int, list[int]]] = {}
    for one, meta in zip(tasks, metas, strict=True):
        to = meta.get("reply_to", "~replies.")
        if to.startswith("~replies."):
            continue
        task_id = f"{one['id']}@{one['stream'][2:]}"
        number, times = asked.get((one["queue"], one["agent"]), (0, []))
        replies = [
            ms(other["time"], one["time"])
            for other, about in by_about[to, meta.get("correlation_id", task_id)]
            if other is not one
            and other["time"] >= one["time"]
            and about.get("causation_id", task_id) == task_id
        ]
        asked[one["queue"], one["agent"]] = number + 1, times + replies[:1]
    return asked


def expected_holds(rows: Rows) -> tuple[dict[str, list[tuple[Any, str, int | None]]], Counter[str]]:
    """Return for each flag its holds (agent, how it ended, how long), and satisfies without one."""
    events: dict[str, Rows] = defaultdict(list)
    for one in in_order(rows):
        if one["event"] in ("announced", "satisfied", "released"):
            events[one["fields"]["flag"]].append(one)
    end = max(one["time"] for one in rows if one["kind"] != "gap")
    holds: dict[str, list[tuple[Any, str, int | None]]] = defaultdict(list)
    alone: Counter[str] = Counter()
    for flag, told in events.items():
        for at, one in enumerate(told):
            before = told[at - 1] if at else None
            after = told[at + 1] if at + 1 < len(told) else None
            if one["event"] == "announced":
                how = ending(one, after)
                until = after["time"] if after else end
                long = None if how == "expired" else ms(until, one["time"])
                holds[flag].append((one["agent"], how, long))
            elif one["event"] == "satisfied" and not (
                before and before["event"] == "announced" and same(before, one)
            ):
                alone[flag] += 1
    return holds, alone


def ending(one: dict[str, Any], after: dict[str, Any] | None) -> str:
    if after is None:
        return "open"
    if after["event"] != "announced":
        return str(after["event"]) if same(one, after) else "expired"
    return "taken" if "forced_from" in after["fields"] else "expired"


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    tokens = {one["fields"].get("token"), other["fields"].get("token")} - {None}
    return len(tokens) < 2


# -- histories ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2_000, nightly(10_000)])
@settings(
    max_examples=1,
    phases=[Phase.generate],
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 1000), hours=st.sampled_from([4, 40, 300]))
def test_the_figures_are_those_of_a_plain_program(spark, size, seed, hours):
    rows = history(seed, size, hours)

    tables = found(running.run(TALK, frame(spark, rows)))

    for name, column in (("agents", "agent"), ("topics", "topic")):
        figures = {
            one[column]: (one["messages"], one["events"], one["tasks"], one["bytes"])
            for one in tables[f"activity.{name}"].rows
        }
        assert figures == expected_activity(rows, column)
    if tables["activity.times"].title == "By hour":
        figures = {
            one["time"]: (one["messages"], one["events"], one["tasks"], one["bytes"])
            for one in tables["activity.times"].rows
        }
        assert figures == expected_activity(rows, "time")

    answers = expected_answers(rows)
    pairs = tables["conversations.pairs"]
    assert pairs.left_out == max(0, len(answers) - 600)
    for one in pairs.rows:
        took = answers[one["speaker"], one["answered"]]
        assert one["answers"] == len(took)
        assert (one["p50_ms"], one["p90_ms"]) == (near(share(took, 0.5)), near(share(took, 0.9)))

    replies = expected_replies(rows)
    assert {(one["queue"], one["asker"]) for one in tables["conversations.requests"].rows} == set(
        replies
    )
    for one in tables["conversations.requests"].rows:
        number, took = replies[one["queue"], one["asker"]]
        assert (one["requests"], one["answers"]) == (number, len(took))
        assert (one["p50_ms"], one["p90_ms"]) == (near(share(took, 0.5)), near(share(took, 0.9)))

    holds, alone = expected_holds(rows)
    for one in tables["flags.flags"].rows:
        mine = holds[one["flag"]]
        times = [long for _, _, long in mine if long is not None]
        assert (one["holds"], one["without_hold"]) == (len(mine), alone[one["flag"]])
        for how in ("satisfied", "released", "taken", "expired", "open"):
            assert one[how] == sum(1 for _, ended, _ in mine if ended == how)
        assert one["held_ms"] == sum(times)
        assert one["max_ms"] == max(times, default=None)
        assert (one["p50_ms"], one["p90_ms"]) == (near(share(times, 0.5)), near(share(times, 0.9)))
    every = [(agent, long) for mine in holds.values() for agent, _, long in mine]
    assert {one["agent"]: one["holds"] for one in tables["flags.agents"].rows} == Counter(
        agent for agent, _ in every
    )


# -- single rules ------------------------------------------------------------------------------------


def answered(spark, rows):
    got = conversations.answers(frame(spark, rows)).toArrow().to_pylist()
    return sorted((a["speaker"], a["answered"], a["topic"], a["took_ms"]) for a in got)


def test_an_answer_may_take_ten_minutes_and_cross_the_hour(spark):
    rows = [
        *(said("ada", 3_599_999), said("bob", 3_600_001)),
        *(said("ada", 4_300_001), said("bob", 4_900_001)),
        *(said("ada", 5_500_002), said("cat", 5_500_002, "topic")),
        *(said("ada", 6_900_000), said("bob", 7_500_000), said("cat", 8_100_001)),
        *(said("ada", 10_000_000), said("ada", 10_799_000), said("bob", 10_801_000)),
    ]

    # The others come too late: by 99,999 ms, and by one.
    assert answered(spark, rows) == [
        *(("bob", "ada", None, took) for took in (2, 2_000, 600_000, 600_000)),
    ]


def test_who_speaks_twice_in_a_row_answers_once_and_events_are_no_messages(spark):
    rows = [
        *(said("ada", 0), said("bob", 5, event="announced", flag="f"), said("bob", 10)),
        *(said("bob", 20), said("ada", 30, seq=0), said("bob", 30, seq=1)),
    ]

    assert answered(spark, rows) == [
        ("ada", "bob", None, 10),
        ("bob", "ada", None, 0),
        ("bob", "ada", None, 10),
    ]


def test_a_reply_belongs_to_the_request_that_caused_it(spark):
    first = task("mail", 0, "ada", correlation_id="order-7", reply_to="answers")
    second = task("mail", 10, "ada", correlation_id="order-7", reply_to="answers")
    foreign = task("mail", 20, "ada", correlation_id="order-8", reply_to="answers")
    caused = f"{second['id']}@mail"
    rows = [
        *(first, second, foreign, task("mail", 30, "ada", reply_to="answers")),
        task("answers", 100, None, correlation_id="order-7", causation_id=caused),
        # Another program says only what it is about.
        task("answers", 120, None, correlation_id="order-8"),
        task("other", 130, None, correlation_id="order-7", causation_id=f"{first['id']}@mail"),
        # A request is not the reply to itself.
        task("chat", 140, "bob", correlation_id="order-9", reply_to="chat"),
    ]

    got = conversations.requests(frame(spark, rows)).toArrow().to_pylist()

    times = {one["task_id"]: one["took_ms"] for one in got}
    assert times == {
        f"{first['id']}@mail": None,
        caused: 90,
        f"{foreign['id']}@mail": 100,
        f"{rows[3]['id']}@mail": None,
        f"{rows[7]['id']}@chat": None,
    }


def test_requests_are_looked_for_by_one_pass(spark, tmp_path):
    frame(spark, [task("mail", 0, "ada", reply_to="answers")]).write.parquet(str(tmp_path / "rows"))

    found = conversations.requests(spark.read.parquet(str(tmp_path / "rows")))

    # The other one is for replies.
    plan = found._jdf.queryExecution().executedPlan().toString()
    assert plan.count("FileScan") == 2


def hold_ends(spark, *events):
    rows = [
        said(agent, at, "coordination", event=event, flag="f", **fields)
        for at, (agent, event, fields) in enumerate(events)
    ]
    got = flags.holds(frame(spark, rows)).orderBy("time", "seq").toArrow().to_pylist()
    return [(one["agent"], one["ended"], one["by"], one["held_ms"]) for one in got]


def test_each_way_in_which_a_hold_ends_is_told_apart(spark):
    assert hold_ends(
        spark,
        ("ada", "announced", {"token": 1}),
        ("ada", "satisfied", {"token": 1}),
        ("bob", "announced", {"token": 2}),
        ("ada", "released", {"token": 2}),
        ("bob", "announced", {"token": 3}),
        ("ada", "announced", {"token": 4, "forced_from": "bob"}),
        ("bob", "announced", {"token": 5}),
        ("cat", "satisfied", {"token": 6}),
        ("ada", "announced", {"token": 7}),
    ) == [
        ("ada", "satisfied", "ada", 1),
        ("bob", "released", "ada", 1),
        ("bob", "taken", "ada", 1),
        ("ada", "expired", None, None),
        ("bob", "expired", None, None),
        (None, None, "cat", None),
        ("ada", "open", None, None),
    ]


def test_an_open_hold_counts_until_the_end_of_the_report(spark):
    rows = [
        *(said("ada", at, event="announced", flag="short", token=at) for at in (0, 20)),
        *(said("ada", at + 10, event="released", flag="short", token=at) for at in (0, 20)),
        said("bob", 100, event="announced", flag="deploy", token=1),
        task("mail", 420_100),
    ]

    got = found(running.run(["flags"], frame(spark, rows)))

    flags_, agents = got["flags.flags"], got["flags.agents"]
    assert [(one["flag"], one["held_ms"], one["max_ms"], one["open"]) for one in flags_.rows] == [
        ("deploy", 420_000, 420_000, 1),
        ("short", 20, 10, 0),
    ]
    assert [(one["agent"], one["held_ms"]) for one in agents.rows] == [
        *(("bob", 420_000), ("ada", 20)),
    ]
    assert "until the last entry of this report, 2025-11-20 07:07" in flags_.note
    # The bars are as long as the holds.
    boxes = re.findall(r'class="s0" d="M[^h]+h([\d.]+)', svg.draw(flags_))
    assert [float(one) > 100 for one in boxes] == [True, False]


def test_contention_counts_changes_handovers_and_force(spark):
    told = [
        *((0, "ada", "announced", {"token": 1}), (100, "ada", "satisfied", {"token": 1})),
        *((150, "bob", "announced", {"token": 2}), (300, "bob", "released", {"token": 2})),
        *((9_300, "ada", "announced", {"token": 3}), (9_400, "bob", "satisfied", {"token": 3})),
        *((9_500, "bob", "announced", {"token": 4}),),
        *((9_600, "ada", "announced", {"token": 5, "forced_from": "bob"}),),
    ]
    rows = [said(who, at, event=event, flag="f", **more) for at, who, event, more in told]
    rows += [said("ada", 1, event="announced", flag="quiet", token=1)]

    (got,) = (
        table.rows
        for table in running.run(["flags"], frame(spark, rows), table="contention")
        .results[0]
        .tables
    )

    assert got == [
        {
            "flag": "f",
            "agents": 2,
            "holds": 5,
            "changes": 4,
            "handed_over": 1,
            "taken": 1,
            "ended_by_force": 1,
            "free_p50_ms": statistics.median([50, 9000]),
        }
    ]


def test_rows_that_other_programs_wrote_break_nothing(spark):
    rows = [
        row("ch:main", "channel", 0, event="announced", fields={"flag": "f", "token": "x"}),
        row("ch:main", "channel", 1, event="satisfied", fields={"token": "1"}),
        row("q:a%3Ab:high", "queue", 2, queue="a:b", fields={"meta": '{"reply_to": [1'}),
        row("q:mail", "queue", 3, queue="mail", fields={"meta": '{"reply_to":{"a":1}}'}),
        row("metrics", "metrics", 4, event="work"),
    ]

    tables = found(running.run(TALK, frame(spark, rows)))

    assert [one["holds"] for one in tables["flags.flags"].rows] == [1]
    assert sum(one["tasks"] for one in tables["activity.agents"].rows) == 2


# -- the frame ---------------------------------------------------------------------------------------


def test_only_the_first_rows_of_a_table_are_kept_and_the_others_are_counted():
    rows = [{"id": number, "hidden": 0} for number in range(250)]

    got = running.fill("any", Table("numbers", "Numbers", ("id",), rows, top=100, more=7))

    assert got.rows == [{"id": number} for number in range(100)]
    assert got.left_out == 157


def test_the_summary_tells_what_was_lost_and_where(spark):
    rows = [said("ada", 0), task("mail", 60_000), gap("q:mail", 30_000, 17), gap("q:x", 99_000, 2)]

    got = running.run((), frame(spark, rows)).summary

    assert (got.total, got.streams, got.lost) == (2, 2, 19)
    assert [(one.stream, one.lost) for one in got.losses] == [("q:mail", 17), ("q:x", 2)]
    assert got.span.first == START
    assert ms(got.span.last, START) == 60_000


def test_an_archive_without_rows_gives_reports_that_say_so(spark):
    got = running.run(TALK, frame(spark, []))

    assert [one.empty for one in got.results] == [
        activity.REPORT.empty,
        conversations.REPORT.empty,
        flags.REPORT.empty,
    ]
    assert got.summary.span == Span()


def test_no_rows_are_reported_without_spark():
    got = running.run(TALK, None)

    assert [one.empty for one in got.results] == [reports.load(name).empty for name in TALK]
    assert got.summary.total == 0


def test_what_spark_refuses_is_told_in_a_sentence(spark):
    rows = frame(spark, [said("ada", 0)]).withColumn("kind", F.raise_error(F.lit("no such luck")))

    with pytest.raises(AgentBusError, match=r"the reports' summary.*no such luck") as error:
        running.run(["flags"], rows)

    assert "\n" not in error.value.message


def test_a_table_that_there_is_not_is_refused_before_anything_runs():
    with pytest.raises(UsageError, match="there is no table 'nonsense'"):
        running.run(["flags"], None, table="nonsense")


def test_a_report_that_is_unknown_is_refused_with_the_list():
    assert reports.chosen("all") == tuple(reports.NAMES)
    with pytest.raises(UsageError, match="activity"):
        reports.chosen("nonsense")
