"""The figures of reports are those of another engine: DuckDB, by queries of its own."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal

import pytest

from agentbus.pipeline.archives.reader import read
from agentbus.pipeline.reports import NAMES, load, running
from tests.pipeline import histories, report_queries, talk
from tests.pipeline.archives import write_archive

pytestmark = pytest.mark.usefixtures("plain_plans")


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
    return [c for c in (*known, "held_by", "ended", "name", "figure", "time", "cause") if c in row]


def test_every_table_but_those_of_attempts_is_queried():
    names = [name for name in NAMES if name != "attempts"]

    assert {f"{name}.{table}" for name in names for table in load(name).tables} == set(
        report_queries.QUERIES
    )


def test_reports_of_work_are_what_duckdb_says(spark, tmp_path):
    write_archive(tmp_path / "bus", histories.history(3_000, seed=4, days=6), "app")

    filled = compared(spark, tmp_path / "bus", ["activity", "tasks", "lag", "slowest", "anomalies"])

    assert len(filled) == 17


def test_reports_of_talk_are_what_duckdb_says(spark, tmp_path):
    write_archive(tmp_path / "bus", talk.history(7, 1_500, 40), "app")

    filled = compared(spark, tmp_path / "bus", ["activity", "conversations", "flags"])

    assert len(filled) == 12
