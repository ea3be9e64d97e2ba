"""Has Spark start sooner from now on.

Runs a little of all that the pipeline does once, and keeps the classes that the JVM read for it.
"""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.window import Window

from agentbus.core import settings
from agentbus.core.errors import ConfigError
from agentbus.pipeline import classes, home, java, opening
from agentbus.pipeline.telling import told

_ENDS_WITHIN = 60.0
_NAME = "agentbus-prepare"
_SCHEMA = "n BIGINT, name STRING, fields MAP<STRING, STRING>, at TIMESTAMP"
_ROWS = 100


def prepare(found: java.Java) -> pathlib.Path:
    """Make the file of Spark's classes for a Java, which takes a minute or two, and return it.

    Opens a session of its own, so none may be open in this process. Raises `ConfigError` if Spark does
    not start, Java makes no such file, or there is nowhere to keep it.
    """
    cache = settings.cache_directory()
    if not pathlib.Path(home.kept()).is_relative_to(cache):
        raise ConfigError(
            f"Spark's classes cannot be kept: {cache} cannot be written to",
            hint="set XDG_CACHE_HOME to a directory that can be",
        )
    with tempfile.TemporaryDirectory(prefix="agentbus-prepare-") as place:
        names = pathlib.Path(place, "names")
        listing = classes.option("DumpLoadedClassList", names)
        spark = opening.session(
            conf={"spark.driver.extraJavaOptions": f"{classes.QUICK} {listing}"}
        )
        try:
            _work(spark, place)
        except PySparkException as error:
            raise told(error) from error
        jvm: Any = SparkContext._jvm
        classpath = jvm.java.lang.System.getProperty("java.class.path")
        spark.stop()
        _end()
        return classes.keep(found, names, classpath)


def _end() -> None:
    """End the JVM, which has written all of the list only then."""
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_ENDS_WITHIN)


def _work(spark: SparkSession, place: str) -> None:
    """Do what archiving, reading, reports and replays do in the JVM, on a few rows."""
    spark.dataSource.register(_Source)
    spark.sparkContext.parallelize([1, 2], 2).map(str).collect()
    rows = spark.read.format(_NAME).load()
    path = os.path.join(place, "rows")
    dated = rows.withColumn("date", functions.to_date("at"))
    dated.repartition(2).sortWithinPartitions("n").write.partitionBy("date").parquet(path)
    kept = spark.read.parquet(path).where("n > 3 AND date IS NOT NULL")
    _report(kept)
    grown: list[Any] = []
    stream = spark.readStream.format(_NAME).load().writeStream.trigger(availableNow=True)
    stream.foreachBatch(lambda frame, _n: grown.extend(frame.collect())).option(
        "checkpointLocation", os.path.join(place, "checkpoint")
    ).start().awaitTermination()


def _report(kept: DataFrame) -> None:
    named = Window.partitionBy("name").orderBy("n")
    kept.createOrReplaceTempView("kept")
    figures = kept.groupBy("name", "date").agg(
        functions.count("*").alias("count"),
        functions.countDistinct("n").alias("distinct"),
        functions.max("at").alias("last"),
        functions.percentile_approx("n", [0.5, 0.99]).alias("percentiles"),
    )
    ranked = kept.select("*", functions.row_number().over(named).alias("rank"))
    both = ranked.join(figures, ["name", "date"], "left").orderBy("name", "rank").cache()
    both.limit(5).collect()
    both.select(functions.explode("fields"), "n").groupBy("key").sum("n").toArrow()
    kept.sparkSession.sql(
        "SELECT date_trunc('hour', at) AS hour, from_json(name, 'a INT') AS parsed, sum(n)"
        " FROM kept GROUP BY ALL UNION ALL SELECT max(at), null, 1 FROM kept"
    ).collect()
    both.unpersist()


class _Rows(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return _some(0)


class _Stream(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"n": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[Any, ...]], dict[str, int]]:
        return _some(start["n"]), {"n": _ROWS}

    def readBetweenOffsets(  # noqa: N802
        self, start: dict[str, int], end: dict[str, int]
    ) -> Iterator[tuple[Any, ...]]:
        return _some(start["n"])


class _Source(DataSource):
    @classmethod
    def name(cls) -> str:
        return _NAME

    def schema(self) -> str:
        return _SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        return _Rows()

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:  # noqa: N802
        return _Stream()


def _some(start: int) -> Iterator[tuple[Any, ...]]:
    import datetime

    now = datetime.datetime.now(datetime.UTC)
    return iter([(n, f"name {n % 3}", {"a": str(n)}, now) for n in range(start, _ROWS)])
