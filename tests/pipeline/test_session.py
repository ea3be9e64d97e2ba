"""A session: what it needs, what it says, and how it fails."""

from __future__ import annotations

import json
import os
import shutil
import socket
import warnings

import pyspark
import pytest
from pyspark import SparkContext

from agentbus.errors import BackendUnavailable, ConfigError, UsageError
from agentbus.pipeline.spark import quiet
from agentbus.pipeline.spark.session import java_options, session
from tests.pipeline import clusters

# A whole life: a job in a Python worker, errors of Spark's, and the JVM killed.
LIFE = """
import json, os, sys
from pyspark.sql.functions import udf
from agentbus.pipeline.spark.session import session
from agentbus.pipeline.spark.errors import told

spark = session("local[2,4]", conf={"spark.driver.memory": "600m"})

def ours(number):
    import agentbus.core.keys
    return f"{agentbus.core.keys.__name__} {number}"

rows = [row.said for row in spark.range(3).select(udf(ours)("id").alias("said")).collect()]
version = spark.sparkContext._jvm.System.getProperty("java.version")
errors = []

def attempt(act):
    try:
        act()
    except Exception as error:
        errors.append(str(told(error)))

attempt(lambda: spark.range(3).where("nosuch = 1"))
process = spark.sparkContext._gateway.proc
process.kill()
process.wait()
attempt(lambda: spark.range(3).count())
print(json.dumps([rows, version, errors, os.listdir(".")]))
"""
START = """
import json, sys
from agentbus.pipeline.spark.session import session
from agentbus.errors import AgentBusError
try:
    session(*json.loads(sys.argv[1]), conf=json.loads(sys.argv[2]))
except AgentBusError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow
def test_a_machine_without_java_runs_python_in_spark_and_says_nothing(tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("env", "sh", "bash", "dirname", "ps", "nice"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    before = sorted(os.listdir(clusters.SPARK_HOME))

    done = clusters.run(
        LIFE, home=tmp_path / "a home", PATH=str(tools), JAVA_HOME="", XDG_CACHE_HOME=""
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    rows, version, errors, left = json.loads(done.stdout)
    assert rows == ["agentbus.core.keys 0", "agentbus.core.keys 1", "agentbus.core.keys 2"]
    assert int(version.split(".")[0]) >= 17
    assert "`nosuch` cannot be resolved" in errors[0]
    assert errors[1].startswith("Spark's Java process is gone")
    # Its own cache, and nothing that Spark left where it was started or installed.
    assert left == [".cache"]
    assert sorted(os.listdir(clusters.SPARK_HOME)) == before


def test_a_jvm_that_does_not_start_says_why(tmp_path):
    done = clusters.run(
        *(START, '["local[1]"]', '{"spark.driver.memory": "1x"}'),
        home=tmp_path,
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.startswith("ConfigError Spark did not start on ")
    assert "-Xmx1x" in done.stdout


@pytest.mark.parametrize("master", [None, "spark://127.0.0.1:1", "yarn"])
def test_a_user_without_a_passwd_entry_gets_an_error_before_java_starts(master, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 2_000_000_001)
    monkeypatch.setattr("agentbus.pipeline.spark.session._check_reach", lambda *_: None)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)

    with pytest.raises(ConfigError, match="user id 2000000001: it has no passwd") as caught:
        session(master)

    assert caught.value.exit_code == 2
    assert "libnss_wrapper" in str(caught.value.hint)


def test_options_of_the_users_own_win_over_what_suits_a_short_life():
    ours = java_options("local[*,4]", "", "off").split()
    chosen = java_options("local[*,4]", "-XX:+UseSerialGC -Xss2m", "off").split()

    assert "-XX:+UseParallelGC" in ours
    assert set(ours) - set(chosen) == {"-XX:+UseParallelGC"}
    assert chosen[-2:] == ["-XX:+UseSerialGC", "-Xss2m"]
    assert not [each for each in java_options("yarn", "", "off").split() if "-XX:" in each]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"master": "local", "remote": "sc://there"}, "both a master and a Connect server"),
        ({"log_level": "loud"}, "no such log level: 'loud'"),
        ({"remote": "http://there"}, "'http://there' is not a Spark Connect server"),
    ],
)
def test_what_cannot_be_opened_is_refused(arguments, told):
    with pytest.raises(UsageError, match=told):
        session(arguments.pop("master", None), **arguments)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"master": "spark://127.0.0.1:1,localhost:1"}, "the Spark master at spark://127.0.0.1:1"),
        (
            {"remote": "sc://127.0.0.1:1/;token=secret"},
            "the Spark Connect server at sc://127.0.0.1:1",
        ),
    ],
)
def test_a_cluster_that_does_not_answer_is_told_at_once(arguments, told):
    with pytest.raises(BackendUnavailable, match=f"{told}.*does not answer") as caught:
        session(arguments.pop("master", None), **arguments)

    assert "secret" not in str(caught.value)


def test_connect_without_its_packages_names_them(tmp_path):
    # Somebody listens, whoever it is.
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        program = START.replace(
            "session(*json.loads(sys.argv[1])", f"session(remote='sc://127.0.0.1:{port}'"
        )

        done = clusters.run(program, "[]", "{}", home=tmp_path)

    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.startswith(
        "ConfigError Spark Connect needs packages that are not installed: pandas"
    )
    assert f"pip install 'pyspark[connect]=={pyspark.__version__}'" in done.stdout


def test_a_warning_of_a_package_below_does_not_reach_a_user_of_the_command_line():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        quiet.hush_warnings()
        for module in ("pyspark.sql.udf", "pandas", "pysparkling", "mine"):
            warnings.warn_explicit(module, UserWarning, "file.py", 1, module=module)

    assert [str(one.message) for one in seen] == ["pysparkling", "mine"]
