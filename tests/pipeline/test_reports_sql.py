"""The figures of reports are those of another engine: DuckDB, by queries of its own."""

from __future__ import annotations

import datetime
import math
import random
from decimal import Decimal

import pytest

from agentbus.pipeline.archives.reader import read
from agentbus.pipeline.reports import NAMES, load, running
from tests.pipeline import histories, report_queries, talk
from tests.pipeline.archives import row, write_archive

# How often attempts end in each way.
OUTCOMES = {
    "done": 70,
    "retried": 12,
    "dead": 5,
    "snoozed": 4,
    "cancelled": 3,
    "expired": 2,
    "cut_off": 4,
}


def same(found, wanted):
    """Whether two values are the same, and numbers as good as that."""
    if isinstance(found, (int, float, Decimal)) and isinstance(wanted, (int, float, Decimal)):
        return math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-6)
    if isinstance(found, datetime.datetime):
        found = found.replace(tzinfo=None)
    return found == wanted


def compared(spark, path, names):
    """Hold every table of these reports against its query."""
    figures = running.figures(read(spark, path, marked=True), names)
    reported = {f"{name}.{one.name}": one for name in names for one in load(name).build(figures)}
    queried = report_queries.answers(path, list(reported))
    for name, table in reported.items():
        rows = [
            [{c: row[c] for c in table.columns} for row in r] for r in (table.rows, queried[name])
        ]
        found, wanted = (
            sorted(each, key=lambda row: [str(row[c]) for c in _names(row)]) for each in rows
        )
        assert len(found) == len(wanted), name
        for one, other in zip(found, wanted, strict=True):
            wrong = {c: (one[c], other[c]) for c in one if not same(one[c], other[c])}
            assert not wrong, (name, one, wrong)
    return {name for name, table in reported.items() if table.rows}


def _names(row):
    known = (
        "queue",
        "group",
        "worker",
        "agent",
        "what",
        "topic",
        "flag",
        "speaker",
        "answered",
        "asker",
        "by",
    )
    known += ("held_by", "ended", "name", "figure", "time", "cause", "task_id", "attempt")
    return [c for c in known if c in row]


def attempts(number):
    """Attempts at a few workers' tasks: most succeed, others fail for several reasons or are cut off."""
    chance = random.Random(number)
    for at in range(number):
        outcome = chance.choices([*OUTCOMES], [*OUTCOMES.values()])[0]
        fields = {
            "group": chance.choice(("default", "audit")),
            "worker": f"w{at % 7}",
            "attempt": "1",
        }
        fields |= {"task_id": f"{at}-0@mail"} | ({"task": "send"} if at % 3 else {})
        if outcome != "cut_off":
            spent, waited = chance.expovariate(0.01), chance.expovariate(0.1)
            fields |= {
                "took_ms": f"{spent:.3f}",
                "waited_ms": f"{waited:.3f}",
                "began": f"{at * 999}",
            }
        if outcome in ("retried", "dead"):
            fields["error"] = chance.choice(histories.CAUSES) + f" ({at % 5})" * chance.choice(
                (1, 70)
            )
        # Several are of one entry, and so of one moment.
        of = {"queue": chance.choice(histories.QUEUES), "agent": chance.choice((None, "ada", "bo"))}
        yield row("attempts", f"{at // 4 * 5000}-0", **of, event=outcome, fields=fields)


def test_every_table_is_queried():
    assert {f"{name}.{table}" for name in NAMES for table in load(name).tables} == set(
        report_queries.QUERIES
    )


@pytest.mark.slow
def test_reports_of_work_are_what_duckdb_says(spark, tmp_path):
    write_archive(tmp_path / "bus", histories.history(3_000, seed=4, days=6), "app")

    filled = compared(spark, tmp_path / "bus", ["activity", "tasks", "lag", "slowest", "anomalies"])

    assert len(filled) == 17


@pytest.mark.slow
def test_reports_of_talk_are_what_duckdb_says(spark, tmp_path):
    write_archive(tmp_path / "bus", talk.history(7, 1_500, 40), "app")

    filled = compared(spark, tmp_path / "bus", ["activity", "conversations", "flags"])

    assert len(filled) == 12


@pytest.mark.slow
def test_the_report_on_attempts_is_what_duckdb_says(spark, tmp_path):
    write_archive(tmp_path / "bus", [*attempts(800)], "app")

    filled = compared(spark, tmp_path / "bus", ["attempts"])

    assert len(filled) == 3
