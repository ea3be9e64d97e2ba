"""The statements of the page on catalogs work over an archive, and show its newer versions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from agentbus.pipeline.payloads.tables import follow
from agentbus.pipeline.source.data_source import AgentBusSource
from tests.pipeline import clusters
from tests.pipeline.archives import row, write_archive

PAGE = (clusters.ROOT / "docs/how-to/catalogs.md").read_text()
PACKAGES = clusters.ROOT / ".venv" / "engines"
T = 1_763_640_000_000


def statements(heading: str) -> str:
    """Return the first SQL under a heading of the page."""
    part = PAGE.partition(f"\n## {heading}\n")[2]
    return re.search(r"```sql\n(.*?)```", part, re.DOTALL)[1]


@pytest.fixture
def path(tmp_path):
    rows = [row("q:mail", f"{T + n}-0", payload=str(n)) for n in range(3)]
    placed = row("ev:orders", f"{T}-0", topic="orders", event="Placed", payload='{"total": 1.5}')
    write_archive(tmp_path / "bus", [*rows, placed])
    path = str(tmp_path / "bus")
    follow(path, events={("orders", "Placed"): {"properties": {"total": {"type": "number"}}}})
    return path


@pytest.mark.slow
def test_views_of_duckdb_are_kept_in_a_database(path, tmp_path):
    asked = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.pipeline.catalogs",
            path,
            tmp_path / "kept",
            statements("DuckDB"),
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(PACKAGES), str(clusters.ROOT)])},
        check=False,
        capture_output=True,
        text=True,
    )

    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout)[-3:] == [[["mail", "2025-11-20", 3]], [[4]], [[4]]]


def test_views_of_spark_need_no_jar_and_show_newer_versions_when_they_are_made_again(spark, path):
    spark.dataSource.register(AgentBusSource)
    whole, since = [each.strip() for each in statements("Spark").split(";") if each.strip()]

    spark.sql(whole.replace("/data/bus", path))
    before = spark.sql("SELECT count(*) FROM entries").collect()[0][0]
    write_archive(path, [row("q:mail", f"{T + 9}-0", payload="9")])
    spark.sql(whole.replace("/data/bus", path))
    spark.sql(since.replace("/data/bus", path).replace("812", "1"))

    assert (before, spark.sql("SELECT count(*) FROM entries").collect()[0][0]) == (4, 5)
    assert [each["payload"] for each in spark.table("new_entries").collect()] == ["9"]
