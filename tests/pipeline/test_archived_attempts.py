"""The log of attempts in an archive: a row for each attempt, though an entry has several."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

import agentbus
from agentbus.core.settings import Settings
from agentbus.pipeline.archives.archiver import Round, archive
from agentbus.pipeline.archives.compaction import compact
from agentbus.pipeline.archives.reader import read
from agentbus.pipeline.archives.verify import Verified, status, verify
from agentbus.pipeline.rows.typed_columns import typed
from agentbus.pipeline.source.planning import Range
from agentbus.pipeline.source.range_reader import RangeReader
from agentbus.queues.policy import Policies
from agentbus.queues.retry import Backoff
from agentbus.store.steps import Command, one_step

TASKS = 40


@pytest.fixture
def bus(settings: Settings) -> Iterator[agentbus.Bus]:
    with agentbus.connect(settings.url, project=settings.project, agent="ada") as opened:
        opened.runner._policies = Policies({"*": {"record_attempts": 1000}}, "test")
        yield opened


def work(bus: agentbus.Bus) -> int:
    """Run tasks, of which every fourth fails once; return the number of attempts."""

    def handler(delivery: Any) -> None:
        if delivery.payload % 4 == 0 and delivery.attempt == 1:
            raise ValueError("no mailbox")

    bus.queue("mail").publish_many(range(TASKS))
    with bus.subscribe("mail", handler, backoff=Backoff(0.0, 0.0), drain=True) as worker:
        worker.run()
    return TASKS + TASKS // 4


def left(bus: agentbus.Bus) -> int:
    found: int = bus.runner.run(one_step(Command("XLEN", bus.scope.keys.attempt_log)))
    return found


def of_attempts(found: list[Verified]) -> Verified:
    (one,) = [each for each in found if each.stream == "attempts"]
    return one


@pytest.mark.slow
def test_the_archive_has_a_row_for_each_attempt(
    spark: SparkSession, settings: Settings, bus: agentbus.Bus, tmp_path: pathlib.Path
) -> None:
    path = str(tmp_path / "archive")
    attempts = work(bus)
    entries = left(bus)
    options: Any = {"project": settings.project, "streams": "attempts"}

    archived = archive(spark, settings.url, path, **options)
    work(bus)
    archive(spark, settings.url, path, **options)

    assert (archived.rows, archived.lost) == (entries, 0)
    rows = typed(read(spark, path).where("kind = 'attempt'"), "attempt")
    assert rows.count() == 2 * attempts
    found = {
        (row["event"], row["attempt"]): row["n"]
        for row in rows.groupBy("event", "attempt")
        .count()
        .withColumnRenamed("count", "n")
        .collect()
    }
    assert found == {("done", 1): 60, ("retried", 1): 20, ("done", 2): 20}
    failed = rows.where("error is not null").first()
    assert failed is not None
    assert (failed["queue"], failed["group_"], failed["agent"]) == ("mail", "default", "ada")
    assert (failed["error"], failed["error_kind"]) == ("ValueError: no mailbox", "ValueError")
    assert failed["task_id"].endswith("@mail")
    assert rows.where("began is null or waited_ms is null or took_ms is null").count() == 0
    checked = of_attempts(verify(spark, settings, path))
    assert (checked.ok, checked.duplicates, checked.missing) == (True, 0, 0)

    compact(spark, path, before="9999-01-01")

    assert read(spark, path).where("attempt > 0 and took_ms is not null").count() == 2 * attempts
    assert of_attempts(verify(spark, settings, path)) == checked
    (state,) = [one for one in status(settings, path).streams if one.stream == "attempts"]
    assert (state.rows, state.lag) == (checked.rows, 0)


@pytest.mark.slow
def test_attempts_that_were_dropped_are_counted_as_lost(
    spark: SparkSession, settings: Settings, bus: agentbus.Bus, tmp_path: pathlib.Path
) -> None:
    work(bus)
    entries = left(bus)
    bus.runner.run(one_step(Command("XTRIM", bus.scope.keys.attempt_log, "MAXLEN", "=", 1)))

    archived = archive(
        spark, settings.url, str(tmp_path), project=settings.project, streams="attempts"
    )

    assert (archived.rows, archived.lost) == (1, entries - 1)
    assert of_attempts(verify(spark, settings, str(tmp_path))).ok


def test_an_entry_is_as_many_rows_as_it_has_attempts(settings: Settings, bus: agentbus.Bus) -> None:
    attempts = work(bus)
    with RangeReader(settings) as reader:
        (rows,) = reader.read([Range("attempts", "0-0", f"{2**63}-0")])

    assert rows.num_rows == attempts
    assert len(set(rows.column("id").to_pylist())) == left(bus) < attempts
    fields = [dict(row) for row in rows.column("fields").to_pylist()]
    assert sum(one["place"] == "0" for one in fields) == left(bus)
    assert sum(int(one["of"]) for one in fields if one["place"] == "0") == attempts
    assert set(rows.column("queue").to_pylist()) == {"mail"}


def test_attempts_stay_in_the_log_for_those_who_look_and_for_another_archive(
    spark: SparkSession, settings: Settings, bus: agentbus.Bus, tmp_path: pathlib.Path
) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    options: Any = {"project": settings.project, "streams": "attempts"}
    work(bus)
    archive(spark, settings.url, second, **options)
    work(bus)
    entries = left(bus)

    archive(spark, settings.url, first, **options)

    assert left(bus) == entries > 0
    assert archive(spark, settings.url, second, **options).lost == 0
    assert of_attempts(verify(spark, settings, second)).ok


@pytest.mark.slow
def test_attempts_of_a_server_that_went_back_in_time_are_archived(
    run: Callable[..., list[Round]],
    spark: SparkSession,
    settings: Settings,
    bus: agentbus.Bus,
    path: str,
) -> None:
    log = bus.scope.keys.attempt_log
    work(bus)
    (first,) = run(wanted="attempts")
    # Its clock is behind: what came since lies below the archive's position.
    work(bus)
    entries = bus.runner.run(one_step(Command("XRANGE", log, "-", "+")))
    bus.runner.run(one_step(Command("DEL", log)))
    for number, (_, fields) in enumerate(entries, 1):
        bus.runner.run(one_step(Command("XADD", log, f"{number}-0", *fields)))

    (second,) = run(wanted="attempts", new_epoch=True)

    assert (second.rows, second.lost) == (len(entries), 0)
    assert of_attempts(verify(spark, settings, path)).rows == first.rows + second.rows


@pytest.mark.slow
def test_what_another_program_wrote_to_the_log_is_a_row_of_its_fields(
    spark: SparkSession, settings: Settings, bus: agentbus.Bus, tmp_path: pathlib.Path
) -> None:
    bus.runner.run(one_step(Command("XADD", bus.scope.keys.attempt_log, "*", "ids", "x", "a", "b")))
    work(bus)

    source = {"url": settings.url, "project": settings.project, "streams": "attempts"}
    found = spark.read.format("agentbus").options(**source).load()

    assert found.count() == TASKS + TASKS // 4 + 1
    (row,) = found.where("event is null").collect()
    assert (row["kind"], row["fields"]) == ("attempt", {"ids": "x", "a": "b"})
    assert found.where("queue = 'mail'").count() == TASKS + TASKS // 4
