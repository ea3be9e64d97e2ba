"""What Arrow and Spark must agree on: the schema, and how a session reads and writes."""

from __future__ import annotations

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from agentbus.pipeline.rows import schema


def test_arrow_and_spark_know_the_same_schema(spark):
    spark_side = StructType.fromDDL(schema.DDL)

    assert to_arrow_schema(spark_side, timezone="UTC") == schema.ARROW


def test_a_session_reads_and_writes_times_in_utc_and_as_others_read_them(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"
    assert spark.conf.get("spark.sql.parquet.compression.codec") == "zstd"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
