"""Runs the copy tasks of an archive on Spark, and reports their progress."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

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
    with _TaskWatch(spark, len(lots), on_share):
        return [file for row in frame.collect() for file in _unpacked(row[0])]


def _task(work: bytes) -> Callable[[int], bytes]:
    """Return what a task does with its number; it finds this package by name, however it got there."""

    def run(number: int) -> bytes:
        import pickle

        from agentbus.pipeline.archives.copying import copy

        job, lots = pickle.loads(work)  # noqa: S301 (of the driver that sent this function)
        return pickle.dumps(copy(job, lots[number]))

    return run


def _unpacked(data: bytes) -> list[File]:
    found: list[File] = pickle.loads(bytes(data))  # noqa: S301 (our own task's answer)
    return found


class _TaskWatch:
    """Reports the share of a job's tasks that are done, twice a second, if Spark has a status tracker."""

    def __init__(
        self, spark: SparkSession, tasks: int, on_share: Callable[[float], None] | None
    ) -> None:
        self._spark = spark
        self._tasks = tasks
        self._on_share = on_share
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        context = getattr(self._spark, "_sc", None)
        if self._on_share is not None and context is not None:
            self._thread = threading.Thread(
                target=self._look, args=(context.statusTracker(), self._on_share), daemon=True
            )
            self._thread.start()

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self, tracker: Any, tell: Callable[[float], None]) -> None:
        while not self._over.wait(_GLANCE):
            done = 0
            for stage in tracker.getActiveStageIds():
                about = tracker.getStageInfo(stage)
                done = max(done, about.numCompletedTasks if about else 0)
            tell(min(1.0, done / self._tasks))
