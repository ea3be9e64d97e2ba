"""Spark's errors become sentences of ours, and ours stay what they were."""

from __future__ import annotations

import pytest

from agentbus.errors import (
    AgentBusError,
    BackendUnavailable,
    ConfigError,
    EpochMismatch,
    NotFound,
    UsageError,
)
from agentbus.pipeline.spark.errors import told


@pytest.mark.parametrize(
    ("act", "kind", "said"),
    [
        (lambda spark: spark.sql("selec 1"), UsageError, "the SQL does not parse: Syntax error"),
        (lambda spark: spark.range(1).where("x = 1"), UsageError, "`x` cannot be resolved"),
        (
            lambda spark: spark.read.parquet("/no/such"),
            NotFound,
            "Path does not exist: file:/no/such",
        ),
        (
            lambda spark: spark.read.format("nosuch").load(),
            AgentBusError,
            "Failed to find the data source: nosuch",
        ),
    ],
)
def test_what_spark_refuses_is_told_in_one_line(spark, act, kind, said):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        act(spark)

    found = told(caught.value)

    assert type(found) is kind
    assert said in found.message
    assert "\n" not in found.message
    assert "SQLSTATE" not in found.message


def test_our_error_in_a_python_worker_keeps_its_class(spark):
    def fails(_rows):
        raise EpochMismatch("the server went back", hint="begin anew")

    with pytest.raises(Exception) as caught:  # noqa: PT011
        spark.sparkContext.parallelize([1], 1).mapPartitions(fails).count()
    found = told(caught.value)

    assert type(found) is EpochMismatch
    assert found.exit_code == EpochMismatch.exit_code
    assert found.message == "the server went back; begin anew"


JAVA = "An error occurred while calling o1.count.\n: org.apache.spark.SparkException: Job aborted"
TWICE = (
    f"{JAVA}\nTraceback (most recent call last):\n  File 'x'\nagentbus.errors.NotFound: no a\n\nThe"
    " above\nTraceback (most recent call last):\n  File 'y'\nagentbus.errors.UsageError: no b\n"
)
TABLE = [
    (
        f"{JAVA}\n\tat a.b\nCaused by: java.io.IOException: No space left on device\n\tat c.d",
        AgentBusError,
        "no space is left on the device that Spark writes to",
    ),
    ("[JAVA_GATEWAY_EXITED] Java gateway process exited", ConfigError, "Spark did not start"),
    (
        f"{JAVA}\n\tat a.b\nCaused by: java.net.ConnectException: Connection refused\n\tat c.d",
        BackendUnavailable,
        "a connection was refused: Connection refused",
    ),
    (
        "x.y.SparkException: All masters are unresponsive! Giving up.",
        BackendUnavailable,
        "Spark's master does not answer",
    ),
    (
        f"{JAVA}: java.lang.OutOfMemoryError: Java heap space",
        AgentBusError,
        "Spark ran out of memory",
    ),
    (TWICE, UsageError, "no b"),
    (
        f"{JAVA}\nTraceback (most recent call last):\n  File 'x'\n    f()\nKeyError: 'a'\n\n\tat a.b",
        AgentBusError,
        "Spark failed: KeyError: 'a'",
    ),
    (f"{JAVA}\n\tat a.b\n", AgentBusError, "Spark failed: Job aborted"),
    ("", AgentBusError, "Spark failed: RuntimeError"),
]


@pytest.mark.parametrize(("text", "kind", "said"), TABLE)
def test_the_line_that_matters_is_found_in_a_report(text, kind, said):
    found = told(RuntimeError(text))

    assert (type(found), found.message) == (kind, said)


def test_an_error_of_ours_is_left_alone():
    error = NotFound("no such archive")

    assert told(error) is error
