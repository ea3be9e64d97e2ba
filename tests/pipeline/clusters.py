"""Real Spark servers on loopback: a standalone cluster, a Connect server; and S3."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyspark

from agentbus.pipeline.spark import classes, home, java
from tests.servers import scrubbed
from tests.source_tree import ROOT

SPARK_HOME = pathlib.Path(pyspark.__file__).parent
# On a loaded machine a JVM starts for minutes.
_STARTS_WITHIN = 300.0
# Small data is read before a better compiler has paid for itself.
# And all tests that share a session would fill what it keeps compiled code in, and throw it out again.
QUICK = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=128m"
# Plans are interpreted: of a few rows, most of the time would go into compiling them.
PLAIN_PLANS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
# What scripts/setup puts beside the environment, since nothing but tests needs it.
CONNECT_PACKAGES = ROOT / ".venv" / "connect"

# What the tests' S3 server is given for credentials, such as nothing else in a file is.
S3_KEY = "moto-key-7c1f"
S3_SECRET = "moto-secret-0d9be4"


def quick() -> str:
    """Return what a JVM is started with whose SPARK_HOME is `home.path()`: see `agentbus spark`."""
    return " ".join([QUICK, *classes.options(java.find())])


class Daemon:
    """A server of Spark's as a process, whose log is read as it is written."""

    def __init__(self, words: list[str], place: pathlib.Path, **variables: str) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        environment = {
            **scrubbed(dict(os.environ)),
            "SPARK_HOME": str(SPARK_HOME),
            "JAVA_HOME": java.find().home,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(place),
            "SPARK_DAEMON_MEMORY": "256m",
            **variables,
        }
        self.process = subprocess.Popen(
            words,
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def said(self, pattern: str) -> str:
        """Wait until a line of the log matches, and return its first group."""

        def found() -> re.Match[str] | None:
            return next(filter(None, (re.search(pattern, line) for line in self.lines)), None)

        with self._news:
            assert self._news.wait_for(lambda: found() or self._ended, _STARTS_WITHIN), self.log()
            match = found()
        assert match is not None, self.log()
        return match.group(1) if match.groups() else match.group()

    def log(self) -> str:
        """Return all that it wrote."""
        return "".join(self.lines)

    def kill(self) -> None:
        """Kill it with -9."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@dataclass(frozen=True)
class Cluster:
    """A standalone cluster: its URL, and the settings by which its small workers serve."""

    master: str
    conf: Mapping[str, str]
    # What its processes have for SPARK_HOME.
    home: str
    place: pathlib.Path
    workers: tuple[Daemon, ...]
    # A Python that has this project's dependencies, and not the project.
    python: str


def cluster(place: pathlib.Path, workers: int) -> Iterator[Cluster]:
    """Start a master and workers of one core and 512 MB, each a process."""
    python = _bare_python(place)
    spark = home.path()
    daemon = f"{spark}/bin/spark-class"
    ours = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    variables = {
        "PYTHONPATH": sysconfig.get_path("purelib"),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_HOME": spark,
        "SPARK_DAEMON_JAVA_OPTS": quick(),
    }
    started = []
    try:
        master = Daemon(
            [daemon, "org.apache.spark.deploy.master.Master", *ours], place / "master", **variables
        )
        started.append(master)
        url = master.said(r"Starting Spark master at (spark://\S+)")
        master.said("New state: ALIVE")
        for number in range(workers):
            own = place / f"worker-{number}"
            worker = Daemon(
                [
                    *(daemon, "org.apache.spark.deploy.worker.Worker", *ours),
                    *("--cores", "1", "--memory", "512m", "--work-dir", str(own / "work"), url),
                ],
                own,
                **variables,
            )
            started.append(worker)
        for worker in started[1:]:
            worker.said("Successfully registered with master")
        yield Cluster(
            url,
            {
                "spark.executor.memory": "512m",
                **PLAIN_PLANS,
                "spark.driver.memory": "512m",
                "spark.driver.extraJavaOptions": quick(),
                "spark.executor.extraJavaOptions": quick(),
            },
            spark,
            place,
            tuple(started[1:]),
            python,
        )
    finally:
        for each in reversed(started):
            each.kill()


def _bare_python(place: pathlib.Path) -> str:
    """Write a program that runs this Python without what is installed editable, and return it."""
    place.mkdir(parents=True, exist_ok=True)
    path = place / "bare-python"
    # Without `site` no .pth file is read, and this project is found by one.
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    path.chmod(0o755)
    return str(path)


def connect_server(place: pathlib.Path) -> Iterator[str]:
    """Start a Spark Connect server and yield its URL."""
    server = Daemon(
        [
            str(SPARK_HOME / "bin" / "spark-submit"),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *("--master", "local[2,4]"),
            *("--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
            *("--conf", "spark.connect.grpc.binding.port=0", "--conf", "spark.ui.enabled=false"),
            *("--conf", "spark.driver.host=127.0.0.1"),
            *("--conf", f"spark.sql.warehouse.dir={place / 'warehouse'}", "spark-internal"),
        ],
        place,
        PYTHONPATH=sysconfig.get_path("purelib"),
        PYSPARK_PYTHON=_bare_python(place),
        # A Connect server counts as a daemon.
        SPARK_DAEMON_MEMORY="600m",
    )
    try:
        port = server.said(r"Spark Connect server started at: .*:(\d+)")
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.kill()


def run(
    program: str,
    *words: str,
    home: pathlib.Path,
    paths: tuple[pathlib.Path, ...] = (),
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run a Python program in a process of its own, which finds this source tree."""
    found = os.pathsep.join(map(str, (ROOT, *paths)))
    home.mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=home,
        env={**scrubbed(dict(os.environ)), "HOME": str(home), "PYTHONPATH": found, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def s3_environment(endpoint: str) -> dict[str, str]:
    """Return the environment by which boto3 and pyarrow find an S3 server."""
    return {
        "AWS_ACCESS_KEY_ID": S3_KEY,
        "AWS_SECRET_ACCESS_KEY": S3_SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
    }
