"""A standalone cluster, `local-cluster` and Spark Connect run this package's code."""

from __future__ import annotations

import json
import os

import pytest

from tests.pipeline import clusters

# Runs this package's code in executors, and tells where they found it.
PROGRAM = """
import json, sys
from agentbus.pipeline.spark.session import session

def mine(rows):
    import agentbus.store.resp, socket, os
    for row in rows:
        text = agentbus.store.resp.source("announce")
        yield row.id, agentbus.store.resp.__file__, len(text)

spark = session(sys.argv[1], conf=json.loads(sys.argv[2]))
rows = spark.range(0, 4, 1, 2).rdd.mapPartitions(mine).collect()
spark.stop()
print(json.dumps(rows))
"""


@pytest.mark.slow
def test_executors_that_lack_the_package_are_sent_it(cluster_of_two, tmp_path):
    done = clusters.run(
        *(PROGRAM, cluster_of_two.master, json.dumps(dict(cluster_of_two.conf))),
        home=tmp_path,
        PYSPARK_PYTHON=cluster_of_two.python,
        SPARK_HOME=cluster_of_two.home,
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    rows = json.loads(done.stdout)
    assert [row[0] for row in rows] == [0, 1, 2, 3]
    assert all(".zip/agentbus/" in row[1] for row in rows), rows
    assert all(row[2] > 0 for row in rows)


@pytest.mark.slow
def test_a_local_cluster_leaves_nothing_in_the_installed_spark(tmp_path):
    before = sorted(os.listdir(clusters.SPARK_HOME))

    done = clusters.run(
        *(PROGRAM, "local-cluster[1,1,512]"),
        json.dumps({"spark.executor.memory": "512m", "spark.driver.memory": "512m"}),
        home=tmp_path,
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert len(json.loads(done.stdout)) == 4
    assert sorted(os.listdir(clusters.SPARK_HOME)) == before


CONNECTED = """
import json, sys
from pyspark.sql.functions import udf
from agentbus.pipeline.spark.session import session
from agentbus.pipeline.spark.errors import told
from agentbus.pipeline.rows import schema
from agentbus.core.timespec import duration

spark = session(remote=sys.argv[1])

def ours(number):
    return f"{duration(f'{number}m')} {schema.QUEUE}"

rows = [row.said for row in spark.range(2).select(udf(ours)("id").alias("said")).collect()]
try:
    spark.read.parquet("/no/such").count()
except Exception as error:
    rows.append(str(told(error)))
print(json.dumps(rows))
"""


@pytest.mark.slow
def test_a_connect_server_that_lacks_the_package_runs_its_functions(connect_server, tmp_path):
    assert clusters.CONNECT_PACKAGES.exists(), "run scripts/setup test connect"

    done = clusters.run(
        *(CONNECTED, connect_server), home=tmp_path, paths=(clusters.CONNECT_PACKAGES,)
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert json.loads(done.stdout) == [
        "0.0 queue",
        "60.0 queue",
        "Path does not exist: file:/no/such",
    ]
