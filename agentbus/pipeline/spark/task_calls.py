"""Runs a function in Spark's tasks, once for each lot of work, and reports their progress."""

from __future__ import annotations

import contextlib
import importlib
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.functions import udf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GLANCE = 0.5


def call(
    spark: SparkSession,
    name: str,
    job: object,
    lots: Sequence[object],
    on_share: Callable[[float], None] | None = None,
) -> list[Any]:
    """Call the function `module:name` with the job and each lot, each in its own task; return the results.

    `job` and `lots` are sent in the tasks' code, and do not appear in a plan. `on_share` is called
    twice a second with the share of finished tasks.
    """
    if not lots:
        return []
    task = _task(name, pickle.dumps((job, list(lots))))
    context = getattr(spark, "_sc", None)
    with _watched(spark, len(lots), on_share):
        if context is None:
            found = _queried(spark, task, len(lots))
        else:
            # An RDD needs no query plan, whose classes a new session would have to load and
            # compile.
            numbers = context.parallelize(range(len(lots)), len(lots))
            found = numbers.map(task).collect()
    return [pickle.loads(each) for each in found]  # noqa: S301 (our own tasks')


def _queried(spark: SparkSession, task: Callable[[int], bytes], tasks: int) -> list[bytes]:
    """Run the tasks as a query with a row and a function call for each, as Spark Connect needs."""
    with warnings.catch_warnings():
        # If the JVM is gone, PySpark warns here and raises an error below.
        warnings.simplefilter("ignore")
        column = udf(task, "binary", useArrow=False).asNondeterministic()
    frame = spark.range(0, tasks, 1, tasks).select(column("id"))
    return [bytes(row[0]) for row in frame.collect()]


def _task(name: str, work: bytes) -> Callable[[int], bytes]:
    """Return a task's function of its number; it imports this package by name."""

    def run(number: int) -> bytes:
        module, _, function = name.partition(":")
        job, lots = pickle.loads(work)  # noqa: S301 (of the driver that sent this function)
        return pickle.dumps(getattr(importlib.import_module(module), function)(job, lots[number]))

    return run


def at_work(spark: SparkSession) -> tuple[int, int]:
    """Return the numbers of finished and of all tasks in the active stages; 0 if unknown."""
    context = getattr(spark, "_sc", None)
    if context is None:
        return 0, 0
    try:
        tracker = context.statusTracker()
        stages = [*filter(None, map(tracker.getStageInfo, tracker.getActiveStageIds()))]
    except Exception:  # noqa: BLE001 (of a JVM that is gone, the job itself tells)
        return 0, 0
    return sum(one.numCompletedTasks for one in stages), sum(one.numTasks for one in stages)


@contextlib.contextmanager
def _watched(
    spark: SparkSession, tasks: int, on_share: Callable[[float], None] | None
) -> Iterator[None]:
    """Report the share of finished tasks twice a second, if Spark has a status tracker."""
    if on_share is None or getattr(spark, "_sc", None) is None:
        yield
        return
    over = threading.Event()

    def look() -> None:
        while not over.wait(_GLANCE):
            on_share(min(1.0, at_work(spark)[0] / tasks))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
