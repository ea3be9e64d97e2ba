"""deltalake, DuckDB, Polars, pandas, pyarrow and Spark count alike at each version of an archive."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from agentbus.core.settings import resolve
from agentbus.pipeline.archives.archiver import Archiver
from agentbus.pipeline.archives.compaction import compact
from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.location import place
from agentbus.pipeline.archives.reader import read
from agentbus.pipeline.source.data_source import AgentBusSource
from tests.pipeline import clusters
from tests.pipeline.archives import row, write_archive

# Nightly: `test_delta.py` shows the same of deltalake alone, with writers that need no Spark.
pytestmark = pytest.mark.slow
PACKAGES = clusters.ROOT / ".venv" / "engines"
ROUNDS, EACH, ENGINES = 8, 500, 8
T = 1_763_640_000_000


def start(path: str, *versions: int) -> subprocess.Popen[str]:
    """Start a process in which each engine but Spark reads an archive."""
    wanted = PACKAGES / "duckdb_extension_delta"
    assert wanted.is_dir(), f"remove {PACKAGES} if it is there, and run scripts/setup test engines"
    return subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.engines", path, *map(str, versions)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(PACKAGES), str(clusters.ROOT)])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> list[dict]:
    """End a process of engines, and return what they counted."""
    out, _ = process.communicate("end\n", timeout=300)
    assert process.returncode == 0
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("where", ["directory", "bucket"])
def test_every_engine_counts_alike_at_each_version_while_archivers_write(
    spark, valkey, real_url, project, tmp_path, request, where
):
    path = str(tmp_path / "bus")
    if where == "bucket":
        path = f"{request.getfixturevalue('s3').url}/bus"
    spark.dataSource.register(AgentBusSource)
    settings = resolve({"url": real_url, "project": project, "agent": "ada"})
    log, reading = ArchiveTable(place(path)), None
    try:
        for turn in range(ROUNDS):
            for n in range(turn * EACH, (turn + 1) * EACH):
                stream = "dlq:mail:default" if n % 5 == 0 else "q:mail"
                valkey.ask("XADD", f"{project}:{stream}", f"{T + n}-{n}", "payload", "x")
            with Archiver(spark, settings, path) as archiver:
                archiver.run()
            if reading is None:
                reading = start(path)
            if turn == ROUNDS // 2:
                compact(spark, path, before="2026-01-01")
        compact(spark, path, before="2026-01-01")
        meanwhile = said(reading)
    finally:
        if reading is not None:
            reading.kill()
            reading.wait()

    newest = log.snapshot()
    afterwards = said(start(path, *range(newest.version + 1)))
    expected = {version: by_spark(spark, path, version) for version in range(newest.version + 1)}
    assert expected[newest.version] == (ROUNDS * EACH, sum(range(ROUNDS * EACH)))
    assert {one["version"] for one in afterwards} == set(expected)
    assert len({one["version"] for one in meanwhile}) > 1
    assert len({one["engine"] for one in afterwards}) == ENGINES
    for one in meanwhile + afterwards:
        assert one.get("counted") == list(expected[one["version"]]), one


@pytest.mark.parametrize("where", ["directory", "bucket"])
def test_polars_alone_wants_pyarrow_where_a_path_has_to_be_escaped(tmp_path, request, where):
    path = str(tmp_path / "in Köln")
    if where == "bucket":
        path = f"{request.getfixturevalue('s3').url}/in Köln"
    write_archive(path, [row("q:mail", f"{T + n}-{n}") for n in range(4)])

    found = {one["engine"]: one for one in said(start(path, 1))}

    assert len(found) == ENGINES
    # Once Polars reads it, docs/how-to/read-an-archive.md need not advise against it any more.
    assert "in%20K%C3%B6ln" in found.pop("by_polars")["missing"]
    assert {tuple(one["counted"]) for one in found.values()} == {(4, 6)}


def by_spark(spark, path: str, version: int) -> tuple[int, int]:
    """Return how many rows Spark counts at a version, and what their numbers add up to, either way."""
    from pyspark.sql import functions as f

    loaded = spark.read.format("agentbus").options(version=version, partitionRows=200).load(path)
    either = [
        tuple(rows.agg(f.count("*"), f.coalesce(f.sum("seq"), f.lit(0))).first())
        for rows in (read(spark, path, version=version), loaded)
    ]
    assert either[0] == either[1], version
    return either[0]
