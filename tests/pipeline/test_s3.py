"""Spark reads and writes s3a:// in the session that all tests share."""

from __future__ import annotations

import pytest


@pytest.mark.slow
def test_parquet_written_to_s3_is_read_back(spark, s3):
    spark.range(100).write.parquet(f"{s3.url}/numbers")

    assert spark.read.parquet(f"{s3.url}/numbers").count() == 100
    assert s3.client.list_objects_v2(Bucket=s3.bucket, Prefix="numbers/part-")["KeyCount"] > 0
