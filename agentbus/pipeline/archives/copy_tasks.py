"""Runs the copy tasks of an archive on Spark, and reports their progress."""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from agentbus.pipeline.archives.versions import File

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from agentbus.pipeline.archives.copying import CopyJob
    from agentbus.pipeline.source.planning import Range

_GLANCE = 0.5


def copied(
    spark: SparkSession,
    job: CopyJob,
    lots: Sequence[Sequence[Range]],
    on_share: Callable[[float], None] | None = None,
) -> list[File]:
    """Copy each lot in its own task, and return the files that they wrote."""
    from pyspark.sql.functions import udf

    if not lots:
        return []

    # A row for each task, and a function of it: this runs on every kind of cluster, Spark Connect too.
    run = udf(_task(pickle.dumps((job, list(lots)))), "binary", useArrow=False).asNondeterministic()
    frame = spark.range(0, len(lots), 1, len(lots)).select(run("id"))
    with _watched(spark, len(lots), on_share):
        found = [pickle.loads(bytes(row[0])) for row in frame.collect()]  # noqa: S301 (our own tasks')
    return [file for files in found for file in files]


def _task(work: bytes) -> Callable[[int], bytes]:
    """Return what a task does with its number; it finds this package by name, however it got there."""

    def run(number: int) -> bytes:
        import pickle

        from agentbus.pipeline.archives.copying import copy

        job, lots = pickle.loads(work)  # noqa: S301 (of the driver that sent this function)
        return pickle.dumps(copy(job, lots[number]))

    return run


@contextlib.contextmanager
def _watched(
    spark: SparkSession, tasks: int, on_share: Callable[[float], None] | None
) -> Iterator[None]:
    """Report the share of a job's tasks that are done, twice a second, if Spark has a status tracker."""
    context = getattr(spark, "_sc", None)
    if on_share is None or context is None:
        yield
        return
    over = threading.Event()

    def look() -> None:
        tracker = context.statusTracker()
        while not over.wait(_GLANCE):
            stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
            done = max((stage.numCompletedTasks for stage in stages if stage), default=0)
            on_share(min(1.0, done / tasks))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
