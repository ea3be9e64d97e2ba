"""A session: what it needs, what it says, and how it fails."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pyspark
import pytest
from pyspark import SparkConf, SparkContext

from agentbus.errors import BackendUnavailable, UsageError
from agentbus.pipeline.spark import quiet, session as opening
from agentbus.pipeline.spark.session import java_options, session
from tests.pipeline import clusters
from tests.servers import scrubbed
from tests.source_tree import ROOT

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


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_a_user_id_without_a_passwd_entry_runs_spark(tmp_path):
    number = 2_000_000_001
    folder = tmp_path / "home"
    folder.mkdir()
    # The directories above are root's own.
    caps = ("--inh-caps=+dac_override", "--ambient-caps=+dac_override")
    program = (
        "import os; from agentbus.pipeline.spark.session import session;"
        "print(session('local[1]', conf={'spark.driver.memory': '600m'}).range(5).count(), os.getuid())"
    )

    done = subprocess.run(
        ["setpriv", "--reuid", str(number), *caps, sys.executable, "-c", program],
        env={**scrubbed(dict(os.environ)), "HOME": str(folder), "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )

    assert (done.stdout, done.returncode) == (f"5 {number}\n", 0), done.stderr


def test_hadoop_and_java_are_told_of_a_user_without_a_passwd_entry(monkeypatch, tmp_path):
    logins = []
    hadoop = SimpleNamespace(createRemoteUser=str, setLoginUser=logins.append)
    inner = SimpleNamespace(security=SimpleNamespace(UserGroupInformation=hadoop))
    apache = SimpleNamespace(hadoop=inner)
    jvm = SimpleNamespace(org=SimpleNamespace(apache=apache))
    conf = SparkConf(loadDefaults=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 2_000_000_001)
    monkeypatch.setattr(opening, "launch", lambda _conf, _said=None: SimpleNamespace(jvm=jvm))
    monkeypatch.setattr(opening.settings, "hand_down", lambda **_variables: None)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda **_options: None)

    opening._start(conf, "local[1]", "off")

    assert logins == ["2000000001"]
    assert f'"-Duser.home={tmp_path}"' in conf.get("spark.driver.extraJavaOptions")


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
