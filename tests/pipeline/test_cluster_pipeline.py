"""The pipeline as a whole on a standalone cluster, and through Spark Connect."""

from __future__ import annotations

import json
import pathlib
import sysconfig

import pytest

import agentbus
from tests.pipeline import clusters

DEPENDENCIES = pathlib.Path(sysconfig.get_path("purelib"))

# What every program here begins with: words are the master, its settings, the server, project, path.
BEGIN = """
import json, sys
from agentbus.pipeline import archive, compact, read, replay, session, status, verify
from agentbus.settings import resolve

master, conf, url, project, path = sys.argv[1:6]
settings = resolve({"url": url, "project": project})
def ids(rows):
    return sorted((row.stream, row.id) for row in rows.select("stream", "id").collect())
"""

WHOLE = """
from agentbus.pipeline import reports
from agentbus.pipeline.reports import running

spark = session(master, conf=json.loads(conf))
done = archive(spark, url, path, project=project)
rows = read(spark, path)
found = {"rows": done.rows, "lost": done.lost, "ids": ids(rows)}
report = running.run(reports.chosen("tasks"), rows)
found["reported"] = report.summary.total
again = replay(spark, path, settings, queue="again", streams=["q:mail"])
found["replayed"] = again.published
found["nothing more"] = replay(spark, path, settings, queue="again", streams=["q:mail"]).published
spark.stop()
print(json.dumps(found))
"""


def words(master: str, conf, server, project: str, path: pathlib.Path) -> tuple[str, ...]:
    return (master, json.dumps(dict(conf)), server.tcp_url, project, str(path))


def filled(server, project: str, number: int) -> list[list[str]]:
    """Publish tasks and say something; return what an archive should hold, as [stream, id]."""
    with agentbus.connect(server.tcp_url, project=project, agent="ada") as bus:
        expected = [["ch:main", bus.speak("hi").id]]
        queue = bus.queue("mail")
        expected += [["q:mail", queue.publish({"n": n}).partition("@")[0]] for n in range(number)]
    return sorted(expected)


# A master, a worker, an executor and a driver, each a JVM, on a machine that runs all the other tests.
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_pipeline_runs_on_a_cluster_whose_workers_lack_the_package(
    cluster, valkey, project, tmp_path
):
    expected = filled(valkey, project, 30)

    done = clusters.run(
        *(BEGIN + WHOLE, *words(cluster.master, cluster.conf, valkey, project, tmp_path / "bus")),
        home=tmp_path / "home",
        # The driver's own Python workers are those of the executors.
        paths=(DEPENDENCIES,),
        PYSPARK_PYTHON=cluster.python,
        SPARK_HOME=cluster.home,
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert json.loads(done.stdout) == {
        "rows": 31,
        "lost": 0,
        "ids": expected,
        "reported": 31,
        "replayed": 30,
        "nothing more": 0,
    }
    assert valkey.ask("XLEN", f"{project}:q:again") == 30


# An executor's process is killed while it copies, once, from within the first task to come there.
KILLED = """
from agentbus.pipeline.spark import task_calls as jobs

mark, task = path + ".killed", jobs._task

def shot(name, work):
    copying = task(name, work)
    def run(number):
        import os, pathlib, signal
        files = copying(number)
        try:
            pathlib.Path(mark).touch(exist_ok=False)
        except FileExistsError:
            return files
        kill(os, pathlib, signal)
    return run

def kill(os, pathlib, signal):
    # What it wrote is complete, and nobody will hear of it.
    daemon = os.getppid()
    executor = int(pathlib.Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(executor, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

jobs._task = shot
spark = session(master, conf=json.loads(conf))
done = archive(spark, url, path, project=project)
found = {"rows": done.rows, "lost": done.lost, "ids": ids(read(spark, path))}
found["ok"] = all(one.ok for one in verify(spark, settings, path))
spark.stop()
print(json.dumps(found))
"""


@pytest.mark.slow
def test_an_executor_that_is_killed_in_the_middle_costs_no_entry_and_doubles_none(
    cluster_of_two, valkey, project, tmp_path
):
    expected = filled(valkey, project, 200)
    path = tmp_path / "bus"

    done = clusters.run(
        *(
            BEGIN + KILLED,
            *words(cluster_of_two.master, cluster_of_two.conf, valkey, project, path),
        ),
        home=tmp_path / "home",
        # The driver's own Python workers are those of the executors.
        paths=(DEPENDENCIES,),
        PYSPARK_PYTHON=cluster_of_two.python,
        SPARK_HOME=cluster_of_two.home,
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert pathlib.Path(f"{path}.killed").exists()
    assert json.loads(done.stdout) == {"rows": 201, "lost": 0, "ids": expected, "ok": True}


CONNECTED = """
from agentbus.pipeline.spark.errors import told

spark = session(remote=master)
found = {}
def tried(name, work):
    try:
        found[name] = work()
    except Exception as error:
        import traceback
        traceback.print_exc()
        found[name] = str(told(error))
tried("rows", lambda: archive(spark, url, path, project=project).rows)
tried("ids", lambda: ids(read(spark, path)))
tried("ok", lambda: all(one.ok for one in verify(spark, settings, path)))
tried("compacted", lambda: compact(spark, path, before="2999-01-01").rows)
tried("after", lambda: ids(read(spark, path)))
tried("replayed", lambda: replay(spark, path, settings, queue="again", streams=["q:mail"]).published)
def report():
    from agentbus.pipeline import reports
    from agentbus.pipeline.reports import running
    return running.run(reports.chosen("tasks"), read(spark, path)).summary.total
tried("reported", report)
print(json.dumps(found))
"""


@pytest.mark.slow
def test_the_pipeline_runs_through_spark_connect(connect_server, valkey, project, tmp_path):
    assert clusters.CONNECT_PACKAGES.exists(), "run scripts/setup test connect"
    expected = filled(valkey, project, 30)

    done = clusters.run(
        *(BEGIN + CONNECTED, *words(connect_server, {}, valkey, project, tmp_path / "bus")),
        home=tmp_path / "home",
        paths=(clusters.CONNECT_PACKAGES,),
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert json.loads(done.stdout) == {
        "rows": 31,
        "ids": expected,
        "ok": True,
        "compacted": 31,
        "after": expected,
        "replayed": 30,
        "reported": 31,
    }
