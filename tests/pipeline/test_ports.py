"""Other users of the machine: a session shows them no setting, and answers nothing on its ports."""

from __future__ import annotations

import os
import pathlib
import socket
import stat
import struct

from pyspark.sql import SparkSession

from agentbus.pipeline.spark import scratch
from tests.pipeline.conftest import SECRET


def rpc(port: int, body: bytes) -> bytes:
    """Send a message to a port of Spark's, as its own processes do, and return the answer's beginning."""
    head = struct.pack(">BQI", 3, 1, len(body))
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        connection.sendall(struct.pack(">Q", 8 + len(head) + len(body)) + head + body)
        return connection.recv(4_096)


def test_the_drivers_port_deserializes_nothing_of_a_stranger(spark: SparkSession) -> None:
    name = b"endpoint-verifier"
    # No addresses, the name of an endpoint, and the head of a Java object.
    body = b"\0\0" + struct.pack(">H", len(name)) + name + b"\xac\xed\x00\x05sr\x00\x0ccom.evil.One"
    answer = rpc(int(spark.sparkContext.getConf().get("spark.driver.port")), body)

    assert b"Expected SaslMessage" in answer
    assert b"evil" not in answer


def test_python_workers_are_reached_by_sockets_of_this_user_alone(spark: SparkSession) -> None:
    assert spark.sparkContext.parallelize([1, 2], 2).map(lambda number: number + 1).sum() == 5

    assert [path for path in scratch.sockets().iterdir() if path.is_socket()]
    assert stat.S_IMODE(scratch.sockets().stat().st_mode) == 0o700


def test_the_path_of_the_sockets_is_short(tmp_path: pathlib.Path, monkeypatch) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(scratch, "place", lambda: deep)
    scratch.sockets.cache_clear()
    try:
        found = scratch.sockets()
        assert len(os.fsencode(found)) <= 60
        assert stat.S_IMODE(found.stat().st_mode) == 0o700
    finally:
        scratch.sockets.cache_clear()


def test_no_setting_is_in_an_argument_or_left_in_a_file(spark: SparkSession) -> None:
    assert spark.sparkContext._jsc.hadoopConfiguration().get("test.secret") == SECRET
    # What the JVM was started with.
    assert spark.sparkContext._jvm.System.getProperty("spark.hadoop.test.secret") == SECRET

    process = spark.sparkContext._gateway.proc.pid
    arguments = pathlib.Path(f"/proc/{process}/cmdline").read_bytes()
    assert b"SparkSubmit" in arguments
    assert b"session-secret" not in arguments
    for path in scratch.place().rglob("*"):
        assert b"session-secret" not in (path.read_bytes() if path.is_file() else b"")


def test_a_session_serves_no_web_page(spark: SparkSession) -> None:
    assert spark.sparkContext.uiWebUrl is None
