"""One Spark session for all tests of the pipeline, real clusters, and S3.

All tests that need the session run in one process of a run that is spread over several: see
`tests/spreading.py`.
"""

from __future__ import annotations

import pathlib
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from pyspark.sql import SparkSession

from agentbus.commands._main import run as run_verb
from agentbus.core.settings import Settings, resolve
from agentbus.pipeline.archives.archiver import Archiver, Round
from agentbus.pipeline.spark import session as opening
from agentbus.pipeline.spark.session import session
from tests.pipeline import clusters
from tests.servers import free_port
from tests.spreading import APART

# A setting of the session that nobody else may see; text that a file of properties must escape.
SECRET = "session-secret= é\\u0041:#!"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test that would start a second session, in a file that was said to need none."""
    for item in items:
        apart = item.nodeid.partition("::")[0] in APART
        if apart and "spark" in getattr(item, "fixturenames", ()):
            raise pytest.UsageError(f"{item.nodeid} needs the session: see tests/spreading.py")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each JVM that a test starts compile as those do whose data is small."""
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", clusters.QUICK)


@pytest.fixture
def settings(real_url: str, project: str) -> Settings:
    """The settings of an agent on the run's real server."""
    return resolve({"url": real_url, "project": project, "agent": "ada"})


@pytest.fixture
def path(tmp_path: pathlib.Path) -> str:
    """Where an archive may be written."""
    return str(tmp_path / "archive")


@pytest.fixture
def run(spark: SparkSession, settings: Settings, path: str) -> Callable[..., list[Round]]:
    """Return a function that archives what there is now, and returns the rounds."""

    def _run(**options: Any) -> list[Round]:
        rounds: list[Round] = []
        with Archiver(spark, settings, path, **options) as archiver:
            archiver.run(on_round=rounds.append)
        return rounds

    return _run


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where Spark would be started."""

    def opened(*_args: object, **_options: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(opening, "session", opened)


@pytest.fixture
def ask(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, real_url: str, project: str
) -> Callable[..., tuple[int, str, str]]:
    """Run a verb in this process; returns its code, stdout and stderr."""
    monkeypatch.setenv("AGENTBUS_URL", real_url)
    monkeypatch.setenv("AGENTBUS_PROJECT", project)

    def _ask(*words: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run_verb([*map(str, words)])
        return code, *capfd.readouterr()

    return _ask


@pytest.fixture(scope="session")
def s3_port() -> int:
    """The port that S3 will answer at, which Spark must know before it starts."""
    return free_port()


@pytest.fixture(scope="session")
def spark(s3_port: int) -> Iterator[SparkSession]:
    """The session that all tests share; its tasks know the server of S3."""
    opened = session(
        "local[2,4]",
        conf={
            "spark.driver.memory": "1g",
            **clusters.PLAIN_PLANS,
            "spark.driver.extraJavaOptions": clusters.QUICK,
            "spark.hadoop.test.secret": SECRET,
            **{
                f"spark.executorEnv.{name}": value
                for name, value in clusters.s3_environment(f"http://127.0.0.1:{s3_port}").items()
            },
        },
    )
    yield opened
    opened.stop()


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[None]:
    """Have Spark hand filters to sources in Python that take them."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.fixture(scope="session")
def s3_server(s3_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An S3 server for the whole run."""
    # In this process, it would wait for a library that holds the interpreter and waits for it.
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(s3_port)]
    server = clusters.Daemon(words, tmp_path_factory.mktemp("s3"))
    try:
        server.said("Running on")
        yield f"http://127.0.0.1:{s3_port}"
    finally:
        server.kill()


@dataclass(frozen=True)
class S3:
    """A bucket of the test's own: its URL for Spark, and boto3's client."""

    endpoint: str
    bucket: str
    client: Any

    @property
    def url(self) -> str:
        """Return the URL of the bucket."""
        return f"s3://{self.bucket}"


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> S3:
    """A fresh bucket, and the environment by which programs find it."""
    for name, value in clusters.s3_environment(s3_server).items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    bucket = f"test-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=bucket)
    return S3(s3_server, bucket, client)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[clusters.Cluster]:
    """A standalone cluster: a master and a worker, each a process."""
    yield from clusters.cluster(tmp_path_factory.mktemp("cluster"), 1)


@pytest.fixture(scope="session")
def cluster_of_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[clusters.Cluster]:
    """A standalone cluster with two workers, of which one may be lost."""
    yield from clusters.cluster(tmp_path_factory.mktemp("cluster"), 2)


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Spark Connect server; clients want the packages in `clusters.CONNECT_PACKAGES`."""
    yield from clusters.connect_server(tmp_path_factory.mktemp("connect"))
