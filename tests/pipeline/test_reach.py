"""What executors elsewhere could not reach is warned of; what is near is not."""

from __future__ import annotations

import pytest

from agentbus.pipeline.spark.reach import warnings

SHARED = {"url": "redis://redis.internal:6379", "path": "s3a://bucket/archive"}


@pytest.mark.parametrize(
    ("master", "remote"),
    [
        *((None, None), ("local[2]", None), ("local-cluster[2,1,512]", None)),
        *(("spark://127.0.0.1:7077", None), ("spark://localhost:7077,localhost:7078", None)),
        *((None, "sc://localhost:15002"), (None, "sc://[::1]")),
    ],
)
def test_nothing_is_warned_of_on_one_machine(master, remote):
    assert warnings(master, remote, url="redis://127.0.0.1", path="/data") == []


@pytest.mark.parametrize(
    ("master", "remote"), [("spark://big:7077", None), ("yarn", None), (None, "sc://big:15002")]
)
def test_a_cluster_that_can_reach_all_is_not_warned_of(master, remote):
    assert warnings(master, remote, **SHARED) == []


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost:6379",
        "rediss://u:secret@127.0.0.1/1",
        "redis://[::1]:7",
        "unix:///r.sock",
    ],
)
def test_a_server_on_loopback_is_warned_of_without_its_password(url):
    (said,) = warnings("yarn", None, url=url, path="s3a://bucket")

    assert said.startswith("the executors of yarn cannot reach a server on this machine alone")
    assert "secret" not in said


def test_a_connect_servers_token_is_not_told():
    said = warnings(None, "sc://big:15002/;token=secret", url=None, path="/data")

    assert len(said) == 2
    assert "secret" not in "".join(said)


def test_the_embedded_server_is_warned_of():
    (said,) = warnings("yarn", None, url=None, path="s3a://bucket")

    assert "the embedded server" in said


@pytest.mark.parametrize("path", ["/data/archive", "archive", "file:///data"])
def test_a_local_path_is_warned_of(path):
    (said,) = warnings("k8s://https://k", None, url="redis://redis", path=path)

    assert path in said
    assert "storage that all of them share" in said
