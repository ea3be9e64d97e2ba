"""The report on attempts at tasks: the slowest, by worker and by error."""

from __future__ import annotations

import pathlib
from typing import Any

from pyspark.sql import SparkSession

from agentbus.pipeline.archives.reader import read
from agentbus.pipeline.reports import attempts, running
from tests.pipeline.archives import row, write_archive


def attempt(
    number: int, outcome: str, took: int | None, worker: str = "w1", **fields: str
) -> dict[str, Any]:
    said = {"group": "default", "worker": worker, "task_id": f"{number}-0@mail", "attempt": "1"}
    if took is not None:
        said |= {"took_ms": f"{took}.000", "waited_ms": "5.000", "began": f"{number}"}
    columns = {"queue": "mail", "agent": "ada", "event": outcome, "fields": said | fields}
    return row("attempts", f"{number}-0", **columns)


def test_attempts_are_told_by_length_by_worker_and_by_error(
    spark: SparkSession, tmp_path: pathlib.Path
) -> None:
    rows = [attempt(n, "done", n) for n in range(1, 41)]
    rows += [attempt(50 + n, "retried", 1000, "w2", error="ValueError: no") for n in range(3)]
    rows += [attempt(60, "dead", 1, "w2", error="KeyError: 'x'")]
    rows += [attempt(70, "cut_off", None, "w2")]
    write_archive(tmp_path, rows)

    frame = read(spark, tmp_path, marked=True)
    tables = {t.name: t.rows for t in attempts.build(running.figures(frame, ["attempts"]))}

    slowest = [(one["task_id"], one["took_ms"]) for one in tables["slowest"]]
    assert slowest[:4] == [*((f"{50 + n}-0@mail", 1000.0) for n in range(3)), ("40-0@mail", 40.0)]
    assert len(slowest) == attempts.MOST
    (second, first) = tables["workers"]
    assert (first["worker"], first["attempts"], first["done"]) == ("w1", 40, 40)
    assert (first["mean_ms"], first["longest_ms"], first["mean_waited_ms"]) == (20.5, 40.0, 5.0)
    assert (second["worker"], second["retried"], second["cut_off"]) == ("w2", 3, 1)
    assert second["busy_ms"] == 3001.0
    found = [(one["cause"], one["attempts"], one["dead"]) for one in tables["errors"]]
    assert found == [("ValueError", 3, 0), ("KeyError", 1, 1)]
